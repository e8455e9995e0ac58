// The kernel of expanded attention on the CPU.
#pragma once

#include <cstdint>

namespace fathom {

// Keys are taken in groups that begin at absolute multiples of this.
inline constexpr int64_t kKeyGroup = 64;
// Tokens that share the work on a group of keys.
inline constexpr int64_t kTokenGroup = 128;

// One head of up to kTokenGroup tokens over a chunk of the context.
struct AttendTokens {
  const float* q;  // of the first token
  int64_t q_stride, tokens;
  const int32_t* positions;
  const float *kv, *rope;  // of the chunk's first position
  int64_t kv_stride, context, context_begin;
  int64_t nope_dim, rope_dim, value_dim;
  float scale;
  bool first;  // chunk of the context
  float *out, *lse;
  int64_t out_stride, lse_stride;
  float* workspace;  // AttendTokensWorkspace(nope + rope, value) floats
};
void Attend(const AttendTokens& tokens);
int64_t AttendTokensWorkspace(int64_t key_dim, int64_t value_dim);

}  // namespace fathom
