// Draws tokens without sorting the vocabulary: only the likeliest ids are put in order, as many as
// the cuts and the draw turn out to need.
//   formula:       see ops.h; probabilities and their sums in double, relative to the greatest
//   data mapping:  a thread takes logit vectors
//   bytes, FLOPs:  4 x vocab bytes for each pass over a logit vector: 2 when greedy, some 4
//                  otherwise; an exponential per logit where no top_k bounds them
//   accumulator:   double; sums in order of falling logit, the total of a whole vector in order of
//   id expected time: not measured
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu_ops.h"
#include "ops/sample/request.h"
#include "tensor/buffer.h"

namespace fathom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The greatest logit; NaN if the logit vector cannot be sampled: a NaN, +inf, or nothing finite.
float Greatest(const float* logits, int64_t n) {
  constexpr int64_t kLanes = 16;  // so that the compiler keeps them in vectors
  float max[kLanes];
  int32_t bad[kLanes] = {};
  std::fill_n(max, kLanes, -kInfinity);
  const auto take = [&](float x, int64_t lane) {
    bad[lane] |= !(x < kInfinity);
    max[lane] = x > max[lane] ? x : max[lane];
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) take(logits[i + lane], lane);
  }
  for (; i < n; ++i) take(logits[i], 0);
  const float greatest = *std::max_element(max, max + kLanes);
  const bool ok = std::all_of(bad, bad + kLanes, [](int32_t b) { return b == 0; });
  return ok && greatest > -kInfinity ? greatest : NAN;
}

// Ids in order of falling logit (ties: lower id first) and the running sums of their probabilities,
// found from the front as far as they are asked for.
class FallingOrder {
 public:
  FallingOrder(const float* logits, int64_t vocab, float max, float temperature, int32_t* ids,
               double* sums)
      : logits_(logits),
        vocab_(vocab),
        max_(max),
        temperature_(temperature),
        floor_(kInfinity),
        width_(8 * temperature),
        ids_(ids),
        sums_(sums) {}

  double Probability(float logit) const {
    return std::exp((logit - static_cast<double>(max_)) / temperature_);
  }
  double Total() const {
    double sum = 0;
    for (int64_t v = 0; v < vocab_; ++v) sum += Probability(logits_[v]);
    return sum;
  }
  int32_t id(int64_t i) const { return ids_[i]; }
  // Of the first n. REQUIRES: 0 < n <= vocab.
  double SumOf(int64_t n) {
    while (size_ < n) Extend();
    return sums_[n - 1];
  }
  // How many of the likeliest it takes for reached(their sum), which stays true once it is; all, if
  // rounding leaves the last sum below.
  template <class Reached>
  int64_t Prefix(const Reached& reached) {
    while (size_ == 0 || (size_ < vocab_ && !reached(sums_[size_ - 1]))) Extend();
    const double* first =
        std::partition_point(sums_, sums_ + size_, [&](double sum) { return !reached(sum); });
    return std::min(first - sums_ + 1, size_);
  }
  // How many have at least this probability.
  int64_t CountAtLeast(double probability) {
    const auto in = [&](int32_t id) { return Probability(logits_[id]) >= probability; };
    while (size_ == 0 || (size_ < vocab_ && in(ids_[size_ - 1]))) Extend();
    return std::partition_point(ids_, ids_ + size_, in) - ids_;
  }

 private:
  // Takes in the ids down to a lower logit.
  void Extend() {
    const float floor = max_ - width_;
    const float lower = width_ < 100 * temperature_ && floor < floor_ ? floor : -kInfinity;
    const int64_t begin = size_;
    for (int64_t v = 0; v < vocab_; ++v) {
      if (logits_[v] >= lower && logits_[v] < floor_) ids_[size_++] = static_cast<int32_t>(v);
    }
    std::sort(ids_ + begin, ids_ + size_, [&](int32_t a, int32_t b) {
      return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
    });
    for (int64_t i = begin; i < size_; ++i) {
      sums_[i] = (i == 0 ? 0 : sums_[i - 1]) + Probability(logits_[ids_[i]]);
    }
    floor_ = lower;
    width_ *= 2;
  }

  const float* const logits_;
  const int64_t vocab_;
  const float max_, temperature_;
  float floor_, width_;  // all ids with logits from floor_ up are in; the next step's width
  int32_t* const ids_;
  double* const sums_;
  int64_t size_ = 0;
};

int32_t Draw(const SampleRequest& request, int64_t vocab, FallingOrder order) {
  int64_t kept = request.top_k > 0 ? std::min(request.top_k, vocab) : vocab;
  double mass = kept < vocab ? order.SumOf(kept) : order.Total();
  if (request.top_p < 1) {
    const double enough = request.top_p * mass;
    kept = std::min(kept, order.Prefix([&](double sum) { return sum >= enough; }));
    mass = order.SumOf(kept);
  }
  if (request.min_p > 0) {
    const int64_t likely = std::max<int64_t>(1, order.CountAtLeast(request.min_p));
    if (likely < kept) {
      kept = likely;
      mass = order.SumOf(kept);
    }
  }
  const double drawn = request.uniform * mass;
  return order.id(std::min(kept, order.Prefix([&](double sum) { return sum > drawn; })) - 1);
}

struct Buffers {
  Buffers(Arena& arena, const SampleArgs& a, int threads)
      : ids(arena.Allocate(DType::kI32, {threads, a.logits.dim(1)})),
        sums(arena.Allocate(DType::kI64, {threads, a.logits.dim(1)})) {}
  TensorView ids;
  TensorView sums;  // room for doubles
};

}  // namespace

size_t SampleCpuWorkspace(const Stream& stream, const SampleArgs& a) {
  Arena arena = Arena::Measuring();
  Buffers(arena, a, Threads(stream));
  return arena.used();
}

void SampleCpu(OpContext& context, const SampleArgs& a) {
  Arena arena(context.workspace.data(), context.workspace.size());
  const Buffers b(arena, a, Threads(context.stream));
  const int64_t vocab = a.logits.dim(1);
  Pool(context).ParallelFor(
      Live(a.live, a.logits.dim(0)), Grain(vocab), [&](int64_t vector, int64_t end, int thread) {
        for (; vector < end; ++vector) {
          const float* logits = a.logits.As<float>(vector);
          const float max = Greatest(logits, vocab);
          int32_t& token = a.tokens.As<int32_t>()[vector];
          a.ok.As<int32_t>()[vector] = std::isnan(max) ? 0 : 1;
          token = -1;
          if (std::isnan(max)) continue;
          const SampleRequest request = RequestOf(a, vector);
          if (request.temperature == 0) {
            token = static_cast<int32_t>(std::find(logits, logits + vocab, max) - logits);
          } else {
            double* sums = reinterpret_cast<double*>(b.sums.As<int64_t>(thread));
            token = Draw(request, vocab,
                         FallingOrder(logits, vocab, max, request.temperature,
                                      b.ids.As<int32_t>(thread), sums));
          }
        }
      });
}

}  // namespace fathom
