// How a page of the latent KV pool stores its tokens.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "tensor/tensor_view.h"

namespace fathom {

// A page holds one plane after another, each [kPageTokens, width]; every plane begins on a multiple
// of 64 bytes. FP8 latents have a plane of scales, one a token (docs/design/fp8-cache.md). Planes
// to come: indexer keys.
struct KvFormat {
  DType latent = DType::kBF16;  // F32, BF16 or F8_E4M3
  DType rope = DType::kBF16;    // F32 or BF16: as latent, and BF16 beside F8_E4M3
  int32_t latent_dim = 0;       // kv_lora_rank
  int32_t rope_dim = 0;         // qk_rope_head_dim

  int64_t latent_offset() const { return 0; }  // bytes from the page's begin
  int64_t rope_offset() const {
    return RoundUp64(int64_t{kPageTokens} * latent_dim * static_cast<int64_t>(ByteSize(latent)));
  }
  int64_t scale_offset() const {
    return rope_offset() +
           RoundUp64(int64_t{kPageTokens} * rope_dim * static_cast<int64_t>(ByteSize(rope)));
  }
  int64_t page_bytes() const {
    constexpr int64_t kScaleBytes = int64_t{kPageTokens} * sizeof(float);
    return scale_offset() + (latent == DType::kF8E4M3 ? RoundUp64(kScaleBytes) : 0);
  }

 private:
  static int64_t RoundUp64(int64_t n) { return (n + 63) / 64 * 64; }
};

// The pages of one layer: planes as views into one block of memory.
struct KvPages {
  TensorView latent;  // [pages, kPageTokens, latent], F32, BF16 or F8_E4M3; normed latents
  TensorView rope;    // [pages, kPageTokens, rope], F32 or BF16; rotated keys shared by all heads
  // F32 [pages, kPageTokens]: of an F8_E4M3 latent, which is codes x scale (QuantizeRun of all its
  // channels, with a power of two for a scale); absent otherwise.
  TensorView scales;
};

// The planes of `pages` pages at `data` (which may be null when only shapes count).
inline KvPages PagesAt(const KvFormat& format, std::byte* data, int64_t pages) {
  const auto plane = [&](DType dtype, int64_t offset, int64_t width) {
    return TensorView(data == nullptr ? nullptr : data + offset, dtype, {pages, kPageTokens, width},
                      {format.page_bytes() / static_cast<int64_t>(ByteSize(dtype)), width, 1});
  };
  KvPages planes{.latent = plane(format.latent, format.latent_offset(), format.latent_dim),
                 .rope = plane(format.rope, format.rope_offset(), format.rope_dim),
                 .scales = {}};
  if (format.latent == DType::kF8E4M3) {
    planes.scales = TensorView(data == nullptr ? nullptr : data + format.scale_offset(),
                               DType::kF32, {pages, kPageTokens},
                               {format.page_bytes() / static_cast<int64_t>(sizeof(float)), 1});
  }
  return planes;
}

}  // namespace fathom
