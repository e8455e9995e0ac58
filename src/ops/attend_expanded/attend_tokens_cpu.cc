// Expanded attention of one head of up to 128 tokens over a chunk of the context.
//   formula:       s_tj = scale (q_t . [k_j, rope_j]); out = softmax(s) v over visible j;
//                  then the merge with what chunks before left, by log-sum-exp
//   data mapping:  per 64 keys: scores with lanes along keys (transposed once for all
//                  tokens), output with lanes along the values; up to 12 tokens at a time
//   bytes, FLOPs:  keys and values from L2 for each group of tokens;
//                  2 x (192 + 128) FLOPs per token and key
//   accumulator:   fp32; over keys in order, rescaled when a group raises the maximum
//   expected time: 128 tokens x 512 keys: 42 MFLOP, at some 60 % of the multiply-add peak;
//                  not measured
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/simd.h"
#include "ops/attend_expanded/attend_expanded_cpu.h"
#include "products/cpu/cpu_weight.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attend_expanded/attend_tokens_cpu.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/vector_math-inl.h"
#include "products/cpu/panel_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

constexpr int64_t RoundUp(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

class TokenAttention {
 public:
  explicit TokenAttention(const AttendTokens& args)
      : a_(args),
        key_dim_(args.nope_dim + args.rope_dim),
        value_width_(RoundUp(args.value_dim, kPanel)),
        q_(args.workspace),
        keys_(q_ + RoundUp(key_dim_, kRun) * kTokenGroup),
        values_(keys_ + kKeyGroup * key_dim_),
        scores_(values_ + kKeyGroup * value_width_),
        out_(scores_ + kTokenGroup * kKeyGroup) {}

  void Run() {
    LoadQueries();
    std::fill_n(out_, a_.tokens * value_width_, 0.0f);
    std::fill_n(max_, a_.tokens, -std::numeric_limits<float>::infinity());
    std::fill_n(sum_, a_.tokens, 0.0f);
    int64_t last = -1;  // position that any token sees
    for (int64_t t = 0; t < a_.tokens; ++t) last = std::max<int64_t>(last, a_.positions[t]);
    const int64_t end = std::min(a_.context_begin + a_.context, last + 1);
    for (int64_t begin = a_.context_begin; begin < end;) {
      const int64_t next = begin / kKeyGroup * kKeyGroup + kKeyGroup;
      AddKeys(begin, std::min(next, end));
      begin = next;
    }
    for (int64_t t = 0; t < a_.tokens; ++t) {
      if (a_.positions[t] >= a_.context_begin) Merge(t);
    }
  }

 private:
  static constexpr int64_t kRun = kScaleTile;  // channels of q that lie together

  // q as [runs, tokens, kRun], so that the tokens of a pass lie together.
  void LoadQueries() {
    for (int64_t t = 0; t < a_.tokens; ++t) {
      for (int64_t k = 0; k < key_dim_; k += kRun) {
        std::memcpy(q_ + k * kTokenGroup + t * kRun, a_.q + t * a_.q_stride + k,
                    static_cast<size_t>(std::min(kRun, key_dim_ - k)) * sizeof(float));
      }
    }
  }

  // Keys [begin, end) as panels [key_dim, kPanel], values as [key, value_width_], zero-padded.
  void LoadKeysAndValues(int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    if (n < kKeyGroup) std::fill_n(keys_, kKeyGroup * key_dim_, 0.0f);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t place = begin + j - a_.context_begin;
      const float* kv = a_.kv + place * a_.kv_stride;
      float* key = keys_ + j / kPanel * kPanel * key_dim_ + j % kPanel;
      for (int64_t k = 0; k < a_.nope_dim; ++k) key[k * kPanel] = kv[k];
      key += a_.nope_dim * kPanel;
      const float* rope = a_.rope + place * a_.rope_dim;
      for (int64_t k = 0; k < a_.rope_dim; ++k) key[k * kPanel] = rope[k];
      float* value = values_ + j * value_width_;
      std::memcpy(value, kv + a_.nope_dim, static_cast<size_t>(a_.value_dim) * sizeof(float));
      std::fill(value + a_.value_dim, value + value_width_, 0.0f);
    }
  }

  // How many keys of the group a token sees.
  int64_t Visible(int64_t t, int64_t begin, int64_t end) const {
    return std::clamp<int64_t>(a_.positions[t] + 1 - begin, 0, end - begin);
  }

  void AddKeys(int64_t begin, int64_t end) {
    LoadKeysAndValues(begin, end);
    int64_t t = Score<kMaxAtOnce>(0);
    if constexpr (kMaxAtOnce > 4) t = Score<4>(t);
    if constexpr (kMaxAtOnce > 2) t = Score<2>(t);
    if constexpr (kMaxAtOnce > 1) Score<1>(t);
    for (t = 0; t < a_.tokens; ++t) {
      visible_[t] = Visible(t, begin, end);
      if (visible_[t] > 0) Weigh(t);
    }
    t = Weigh<kMaxAtOnce>(0);
    if constexpr (kMaxAtOnce > 4) t = Weigh<4>(t);
    if constexpr (kMaxAtOnce > 2) t = Weigh<2>(t);
    if constexpr (kMaxAtOnce > 1) Weigh<1>(t);
  }

  // scores_[t][key] for all keys of the group, kTokens tokens at a time.
  template <int kTokens>
  int64_t Score(int64_t t) {
    const DF d;
    const VF scale = hn::Set(d, a_.scale);
    for (; a_.tokens - t >= kTokens; t += kTokens) {
      for (int64_t panel = 0; panel < kKeyGroup; panel += kPanel) {
        VF sum[kTokens][kVectors];
        SetZero(sum);
        for (int64_t k = 0; k < key_dim_; k += kRun) {
          Accumulate<kTokens, 1>(
              keys_ + panel * key_dim_ + k * kPanel, q_ + k * kTokenGroup + t * kRun,
              {.w = kPanel, .panels = 0, .x = kRun}, std::min(kRun, key_dim_ - k), sum);
        }
        FATHOM_UNROLL
        for (int r = 0; r < kTokens; ++r) {
          FATHOM_UNROLL
          for (int c = 0; c < kVectors; ++c) {
            hn::StoreU(hn::Mul(sum[r][c], scale), d,
                       scores_ + (t + r) * kKeyGroup + panel + c * kLanes);
          }
        }
      }
    }
    return t;
  }

  // Scores to weights, zero for keys that the token does not see; rescales what it has so far.
  void Weigh(int64_t t) {
    const DF d;
    float* scores = scores_ + t * kKeyGroup;
    std::fill(scores + visible_[t], scores + kKeyGroup, -std::numeric_limits<float>::infinity());
    const SoftmaxSums sums = Exponentiate(scores, kKeyGroup, max_[t]);
    const float keep = std::exp(max_[t] - sums.max);
    max_[t] = sums.max;
    sum_[t] = sum_[t] * keep + sums.sum;
    if (keep == 1) return;
    float* out = out_ + t * value_width_;
    for (int64_t i = 0; i < value_width_; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, out + i), hn::Set(d, keep)), d, out + i);
    }
  }

  // out_[t][column...] += weights of keys [begin, end) . values, in order of keys.
  template <int kTokens>
  void AddValues(int64_t t, int64_t column, int64_t begin, int64_t end) {
    const DF d;
    float* out = out_ + t * value_width_ + column;
    VF sum[kTokens][kVectors];
    FATHOM_UNROLL
    for (int r = 0; r < kTokens; ++r) {
      FATHOM_UNROLL
      for (int c = 0; c < kVectors; ++c) {
        sum[r][c] = hn::LoadU(d, out + r * value_width_ + c * kLanes);
      }
    }
    Accumulate<kTokens, 1>(values_ + begin * value_width_ + column, scores_ + t * kKeyGroup + begin,
                           {.w = value_width_, .panels = 0, .x = kKeyGroup}, end - begin, sum);
    FATHOM_UNROLL
    for (int r = 0; r < kTokens; ++r) {
      FATHOM_UNROLL
      for (int c = 0; c < kVectors; ++c) {
        hn::StoreU(sum[r][c], d, out + r * value_width_ + c * kLanes);
      }
    }
  }

  // All that kTokens tokens see together, then each what it sees beyond: no token ever meets a
  // value that it does not see.
  template <int kTokens>
  int64_t Weigh(int64_t t) {
    for (; a_.tokens - t >= kTokens; t += kTokens) {
      const int64_t common = *std::min_element(visible_ + t, visible_ + t + kTokens);
      for (int64_t column = 0; column < value_width_; column += kPanel) {
        AddValues<kTokens>(t, column, 0, common);
        for (int64_t r = t; r < t + kTokens; ++r) {
          if (visible_[r] > common) AddValues<1>(r, column, common, visible_[r]);
        }
      }
    }
    return t;
  }

  void Merge(int64_t t) const {
    const float* chunk = out_ + t * value_width_;
    const float chunk_lse = max_[t] + std::log(sum_[t]);
    float *out = a_.out + t * a_.out_stride, *lse = a_.lse + t * a_.lse_stride;
    if (a_.first) {
      for (int64_t i = 0; i < a_.value_dim; ++i) out[i] = chunk[i] / sum_[t];
      *lse = chunk_lse;
      return;
    }
    const float max = std::max(*lse, chunk_lse);
    const float merged = max + std::log(std::exp(*lse - max) + std::exp(chunk_lse - max));
    const float keep = std::exp(*lse - merged), take = std::exp(chunk_lse - merged) / sum_[t];
    for (int64_t i = 0; i < a_.value_dim; ++i) out[i] = out[i] * keep + chunk[i] * take;
    *lse = merged;
  }

  const AttendTokens& a_;
  const int64_t key_dim_, value_width_;
  float* const q_;       // [runs, kTokenGroup, kRun]
  float* const keys_;    // [panels of keys, key_dim, kPanel]
  float* const values_;  // [kKeyGroup, value_width]
  float* const scores_;  // [kTokenGroup, kKeyGroup]
  float* const out_;     // [kTokenGroup, value_width]: not yet divided by sum_
  float max_[kTokenGroup], sum_[kTokenGroup];
  int64_t visible_[kTokenGroup];
};

void AttendAll(const AttendTokens& tokens) {
  TokenAttention(tokens).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {

HWY_EXPORT(AttendAll);

void Attend(const AttendTokens& tokens) {
  HWY_DYNAMIC_DISPATCH(AttendAll)(tokens);
}

int64_t AttendTokensWorkspace(int64_t key_dim, int64_t value_dim) {
  const auto round_up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  const int64_t value_width = round_up(value_dim, kPanel);
  return round_up(key_dim, kScaleTile) * kTokenGroup + kKeyGroup * (key_dim + value_width) +
         kTokenGroup * (kKeyGroup + value_width);
}

}  // namespace fathom
#endif  // HWY_ONCE
