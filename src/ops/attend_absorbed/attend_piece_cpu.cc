// Absorbed attention of up to 16 heads of a token over 256 positions.
//   formula:       s_j = scale (q_latent . latent_j + q_rope . rope_j);
//                  out = sum of exp(s_j - max) latent_j
//   data mapping:  scores: lanes along the latent, 4 heads x 4 keys at a time;
//                  output: lanes along the latent, up to 12 heads; BF16 is widened in registers
//   bytes, FLOPs:  256 x 1,152 bytes of BF16 (644 of FP8), from L2 for all but the first heads;
//                  256 x 2,176 FLOPs a head
//   accumulator:   fp32
//   expected time: 16 heads: 8.9 MFLOP; 300 to 500 positions of BF16 in L3: 0.75 of the peak
#include <algorithm>
#include <limits>
#include <type_traits>

#include "cpu/simd.h"
#include "ops/attend_absorbed/attend_absorbed_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attend_absorbed/attend_piece_cpu.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/vector_math-inl.h"
#include "products/cpu/dot_kernel-inl.h"
#include "products/cpu/panel_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

HWY_INLINE float AsFloat(BF16 x) {
  return ToFloat(x);
}
HWY_INLINE float AsFloat(float x) {
  return x;
}
HWY_INLINE float AsFloat(E4M3 x) {  // as LoadFloats
  return ToFloat(x) * 0x1p-8f;
}

// What a latent as loaded is to be multiplied by.
template <class T>
HWY_INLINE float ScaleOf(const AttendPiece& p, int64_t key) {
  if constexpr (std::is_same_v<T, E4M3>) {
    return 0x1p8f * p.scales[key / kPageTokens][key % kPageTokens];
  }
  return 1;
}

// The type of the keys beside latents of type T.
template <class T>
using RopeOf = std::conditional_t<std::is_same_v<T, E4M3>, BF16, T>;

// Key `key` of a plane of the piece.
template <class T>
HWY_INLINE const T* KeyOf(const void* const* pages, int64_t stride, int64_t key) {
  return static_cast<const T*>(pages[key / kPageTokens]) + key % kPageTokens * stride;
}

// Fetches the next piece's keys into L2, as many as this one's share of work that is done: a task
// begins with misses otherwise, more than L1 can wait for at a time.
template <class T>
class NextKeys {
 public:
  explicit NextKeys(const AttendPiece& p) : next_(p.next) {
    if (next_ != nullptr && next_->latent[0] == p.latent[0]) next_ = nullptr;  // other heads
    total_ = static_cast<float>(2 * p.heads * p.keys);
  }
  // `work`: heads times keys, once for scores and once for sums.
  HWY_INLINE void Done(int64_t work) {
    if (next_ == nullptr) return;
    done_ += work;
    const auto end = static_cast<int64_t>(static_cast<float>(next_->keys) *
                                          (static_cast<float>(done_) / total_));
    for (; key_ < end; ++key_) {
      Fetch(KeyOf<T>(next_->latent, next_->latent_stride, key_), next_->latent_dim);
      Fetch(KeyOf<RopeOf<T>>(next_->rope, next_->rope_stride, key_), next_->rope_dim);
    }
  }

 private:
  template <class U>
  HWY_INLINE void Fetch(const U* key, int64_t n) {
    const char *line = reinterpret_cast<const char*>(key), *const end =
                                                               reinterpret_cast<const char*>(key +
                                                                                             n);
    for (; line < end; line += 64) __builtin_prefetch(line, 0, 2);
  }

  const AttendPiece* next_;
  float total_;
  int64_t done_ = 0, key_ = 0;
};

// Keys at a time, so that there are fewer loads than products.
constexpr int kScoredKeys = kLanes == 1 ? 1 : 4;

// scores[h][key] for kHeads heads from h and kKeys keys of one page.
template <int kHeads, int kKeys, class T>
HWY_NOINLINE void ScoreKeys(const AttendPiece& p, int64_t h, int64_t key, float* scores) {
  VF sum[kHeads][kKeys];
  SetZero(sum);
  AddProducts<kHeads, kKeys>(p.q_latent + h * p.q_latent_stride, p.q_latent_stride,
                             KeyOf<T>(p.latent, p.latent_stride, key), p.latent_stride,
                             p.latent_dim, sum);
  if constexpr (std::is_same_v<T, E4M3>) {
    FATHOM_UNROLL
    for (int c = 0; c < kKeys; ++c) {
      const VF scale = hn::Set(DF(), ScaleOf<T>(p, key + c));
      FATHOM_UNROLL
      for (int r = 0; r < kHeads; ++r) sum[r][c] = hn::Mul(sum[r][c], scale);
    }
  }
  AddProducts<kHeads, kKeys>(p.q_rope + h * p.q_rope_stride, p.q_rope_stride,
                             KeyOf<RopeOf<T>>(p.rope, p.rope_stride, key), p.rope_stride,
                             p.rope_dim, sum);
  FATHOM_UNROLL  // or the sums would live in memory
      for (int r = 0; r < kHeads; ++r) {
    FATHOM_UNROLL
    for (int c = 0; c < kKeys; ++c) {
      scores[(h + r) * kPiece + key + c] = p.scale * hn::GetLane(hn::SumOfLanes(DF(), sum[r][c]));
    }
  }
}

template <int kHeads, class T>
HWY_INLINE int64_t ScoreHeads(const AttendPiece& p, int64_t h, float* scores, NextKeys<T>& next) {
  for (; p.heads - h >= kHeads; h += kHeads) {
    int64_t key = 0;  // keys of one call lie in one page
    for (; p.keys - key >= kScoredKeys; key += kScoredKeys) {
      ScoreKeys<kHeads, kScoredKeys, T>(p, h, key, scores);
      next.Done(kHeads * kScoredKeys);
    }
    for (; key < p.keys; ++key) {
      ScoreKeys<kHeads, 1, T>(p, h, key, scores);
      next.Done(kHeads);
    }
  }
  return h;
}

// Scores to weights, zero beyond the keys up to a whole vector.
HWY_INLINE SoftmaxSums ExponentiateHead(int64_t keys, float* scores) {
  const int64_t padded = (keys + kLanes - 1) / kLanes * kLanes;
  std::fill(scores + keys, scores + padded, -std::numeric_limits<float>::infinity());
  return Exponentiate(scores, padded, -std::numeric_limits<float>::infinity());
}

// out[h][column...] for kHeads heads and kPanels panels of the latent.
template <int kHeads, int kPanels, class T>
HWY_INLINE void WeighColumns(const AttendPiece& p, int64_t h, int64_t column,
                             const float* weights) {
  constexpr int kColumns = kPanels * kVectors;
  VF sum[kHeads][kColumns];
  SetZero(sum);
  for (int64_t key = 0; key < p.keys; key += kPageTokens) {
    Accumulate<kHeads, kPanels>(KeyOf<T>(p.latent, p.latent_stride, key) + column,
                                weights + h * kPiece + key,
                                {.w = p.latent_stride, .panels = kPanel, .x = kPiece},
                                std::min<int64_t>(kPageTokens, p.keys - key), sum);
  }
  FATHOM_UNROLL
  for (int r = 0; r < kHeads; ++r) {
    FATHOM_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      hn::StoreU(sum[r][c], DF(), p.out + (h + r) * p.latent_dim + column + c * kLanes);
    }
  }
}

// out[h] = weights[h] . latents for kHeads heads at a time.
template <int kHeads, class T>
HWY_NOINLINE int64_t WeighHeads(const AttendPiece& p, int64_t h, const float* weights,
                                NextKeys<T>& next) {
  for (; p.heads - h >= kHeads; h += kHeads) {
    float* out = p.out + h * p.latent_dim;
    int64_t column = 0;
    // Few heads leave registers for more columns; two lines of a key at a time are read fastest.
    constexpr int kPanels = kLanes == 16 && kHeads <= 4 && sizeof(T) <= 2 ? 2 : 1;
    for (; column + kPanels * kPanel <= p.latent_dim; column += kPanels * kPanel) {
      WeighColumns<kHeads, kPanels, T>(p, h, column, weights);
      next.Done(kHeads * p.keys * kPanels * kPanel / p.latent_dim);
    }
    for (; column + kPanel <= p.latent_dim; column += kPanel) {
      WeighColumns<kHeads, 1, T>(p, h, column, weights);
    }
    // What is less than a panel wide, in any odd latent.
    for (; column < p.latent_dim; ++column) {
      for (int r = 0; r < kHeads; ++r) {
        float sum = 0;
        for (int64_t key = 0; key < p.keys; ++key) {
          sum += weights[(h + r) * kPiece + key] *
                 AsFloat(KeyOf<T>(p.latent, p.latent_stride, key)[column]);
        }
        out[r * p.latent_dim + column] = sum;
      }
    }
  }
  return h;
}

template <class T>
HWY_INLINE void AttendOneType(const AttendPiece& p) {
  alignas(64) float scores[kHeadGroup * kPiece];
  NextKeys<T> next(p);
  int64_t h = ScoreHeads<kDotTokens, T>(p, 0, scores, next);
  if constexpr (kDotTokens > 2) h = ScoreHeads<2, T>(p, h, scores, next);
  if constexpr (kDotTokens > 1) ScoreHeads<1, T>(p, h, scores, next);
  for (h = 0; h < p.heads; ++h) {
    const SoftmaxSums sums = ExponentiateHead(p.keys, scores + h * kPiece);
    p.max[h] = sums.max;
    p.sum[h] = sums.sum;
  }
  if constexpr (std::is_same_v<T, E4M3>) {
    for (h = 0; h < p.heads; ++h) {
      for (int64_t key = 0; key < p.keys; ++key) scores[h * kPiece + key] *= ScaleOf<T>(p, key);
    }
  }
  h = WeighHeads<kMaxAtOnce, T>(p, 0, scores, next);
  if constexpr (kMaxAtOnce > 4) h = WeighHeads<4, T>(p, h, scores, next);
  if constexpr (kMaxAtOnce > 2) h = WeighHeads<2, T>(p, h, scores, next);
  if constexpr (kMaxAtOnce > 1) WeighHeads<1, T>(p, h, scores, next);
}

void AttendAnyType(const AttendPiece& p) {
  if (p.latent_type == DType::kF8E4M3) {
    AttendOneType<E4M3>(p);
  } else if (p.latent_type == DType::kBF16) {
    AttendOneType<BF16>(p);
  } else {
    AttendOneType<float>(p);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {

HWY_EXPORT(AttendAnyType);

void Attend(const AttendPiece& piece) {
  HWY_DYNAMIC_DISPATCH(AttendAnyType)(piece);
}

}  // namespace fathom
#endif  // HWY_ONCE
