// MLA decode on Hopper: AttendAbsorbed (ops.h) for a latent of 512 and a rope of 64, by TMA and
// wgmma. No device code here: a plain function that enqueues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "products/cuda/bf16_product.h"

namespace fathom {

inline constexpr int kMlaLatent = 512, kMlaRope = 64;
inline constexpr int kMlaNarrowHeads = 16;  // up to so many a kernel of their own

// How contexts are cut into parts: parts begin at multiples of their size, whoever shares the step;
// that depends on the model, its cache, the longest context and a token's own alone.
struct MlaDecodeSplit {
  int32_t tokens = 0;  // positions of a part
  // With more than 16 heads: contexts of up to `short_context` positions have parts of
  // `short_tokens`.
  int32_t short_context = 0, short_tokens = 0;
  // Above 0: that of MlaDecodeSplitOfStep. Contexts have at most so many parts of as many pages,
  // and the kernel for many heads takes any number of them.
  int32_t parts = 0;
};

struct MlaDecodeParams {
  const void* q_latent = nullptr;  // BF16 [tokens, heads, 512], dense, aligned to 16 bytes
  // BF16 [tokens, heads, 64]: heads lie `q_rope_stride` elements apart (a multiple of 8), tokens
  // `q_rope_token_stride` (up to 16 heads; 0, and of more: the next token's right after).
  const void* q_rope = nullptr;
  int64_t q_rope_stride = kMlaRope, q_rope_token_stride = 0;
  // [pages, 64, 512], BF16, or E4M3 with scales [pages, 64], powers of two; BF16 [pages, 64, 64].
  // Each page lies `page_bytes` (a multiple of 16) after the one before.
  const void* latent = nullptr;
  const float* scales = nullptr;  // null: latents are BF16
  const void* rope = nullptr;
  int64_t pages = 0;
  int64_t page_bytes = 0;
  // Device memory. A row's tokens follow each other, in order of position.
  const int32_t* slots = nullptr;       // [tokens]
  const int32_t* positions = nullptr;   // [tokens]
  const int32_t* page_table = nullptr;  // [slots, max_pages]
  const int32_t* live = nullptr;        // [1]: tokens, at most `tokens`
  int32_t max_pages = 0;
  int32_t tokens = 0;  // capacity
  int32_t heads = 0;
  float scale = 1;                 // above 0
  MlaDecodeSplit split;            // one of the two below
  std::span<std::byte> workspace;  // MlaDecodeWorkspace bytes, aligned to 256
  void* out = nullptr;             // BF16 [tokens, heads, 512], dense, aligned to 16 bytes
  // Null, or the product per head of `out`, which is then left with anything. REQUIRES:
  // MlaDecodeMultiplies.
  const Bf16ProductParams* values = nullptr;
};

// Up to 16 heads a part is one section (docs/design/mla-decode.md), of a power of two of positions,
// at least 128. More heads: at most 64 parts.
MlaDecodeSplit MlaDecodeSplitOf(int32_t heads, int32_t max_pages, bool fp8);

// As many parts as suit a step of `tokens` tokens in `rows` rows, so that a token's bits depend on
// both: faster with more than 16 heads, and with fewer in rows of several tokens. Of other steps
// that of MlaDecodeSplitOf.
MlaDecodeSplit MlaDecodeSplitOfStep(int32_t tokens, int32_t rows, int32_t heads, int32_t max_pages,
                                    bool fp8);

// Bytes of work space: contexts' parts, before they are merged. With more than 16 heads of 256
// tokens at most: a larger step takes them in turn, each two kernels.
size_t MlaDecodeWorkspace(int32_t tokens, int32_t heads, int32_t max_pages,
                          const MlaDecodeSplit& split);

// Whether the merge of a step's parts may multiply, too: of one token with up to 16 heads, by
// weights that fit (Bf16HeldFits). Bits are those of merge and product one by one.
bool MlaDecodeMultiplies(const MlaDecodeParams& params, const Bf16ProductParams& values);

// Enqueues two kernels (see above) on the current device (compute capability 9.0). They neither
// allocate nor synchronise, and may be captured in a graph.
void LaunchMlaDecode(const MlaDecodeParams& params, cudaStream_t stream);

}  // namespace fathom
