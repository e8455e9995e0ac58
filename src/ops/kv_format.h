// How a page of the latent KV pool stores its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "tensor/tensor_view.h"

namespace fathom {

// What a plane of a page holds of its tokens.
enum class KvPart : uint8_t {
  kLatent,       // normed latents
  kRope,         // rotated keys shared by all heads
  kLatentScale,  // what the codes of an E4M3 latent are to be multiplied by: one number a token
};

struct KvPlane {
  KvPart part;
  DType dtype;
  int32_t width;  // elements of a token

  // Of a page: every plane begins on a multiple of 64 bytes.
  int64_t bytes() const {
    return (int64_t{kPageTokens} * width * static_cast<int64_t>(ByteSize(dtype)) + 63) / 64 * 64;
  }
};

// A page holds one plane after another, each [kPageTokens, width]. What a model keeps of a token
// beyond latent and key (an indexer's keys) is one more plane of the list.
struct KvFormat {
  std::vector<KvPlane> planes;  // at most one of each part

  // Null where the format has no such plane.
  const KvPlane* Find(KvPart part) const {
    for (const KvPlane& plane : planes) {
      if (plane.part == part) return &plane;
    }
    return nullptr;
  }
  // REQUIRES, of both: there is such a plane.
  const KvPlane& At(KvPart part) const {
    const KvPlane* plane = Find(part);
    CHECK(plane != nullptr, "a page without plane {}", static_cast<int>(part));
    return *plane;
  }
  int64_t Offset(KvPart part) const {  // bytes from the page's begin
    const KvPlane* end = &At(part);
    int64_t offset = 0;
    for (const KvPlane* plane = planes.data(); plane != end; ++plane) offset += plane->bytes();
    return offset;
  }
  int64_t page_bytes() const {
    int64_t bytes = 0;
    for (const KvPlane& plane : planes) bytes += plane.bytes();
    return bytes;
  }
};

// Latents of F32, BF16 or F8_E4M3 with kv_lora_rank channels, and keys of the same type with
// qk_rope_head_dim. Beside F8_E4M3 the keys are BF16, and a plane of scales comes last
// (docs/design/fp8-cache.md).
inline KvFormat LatentKvFormat(DType latent, int32_t latent_dim, int32_t rope_dim) {
  const bool fp8 = latent == DType::kF8E4M3;
  KvFormat format{{{KvPart::kLatent, latent, latent_dim},
                   {KvPart::kRope, fp8 ? DType::kBF16 : latent, rope_dim}}};
  if (fp8) format.planes.push_back({KvPart::kLatentScale, DType::kF32, 1});
  return format;
}

// The pages of one layer: planes as views into one block of memory. Ops find them here by name.
struct KvPages {
  TensorView latent;  // [pages, kPageTokens, latent], F32, BF16 or F8_E4M3; normed latents
  TensorView rope;    // [pages, kPageTokens, rope], F32 or BF16; rotated keys shared by all heads
  // F32 [pages, kPageTokens]: of an F8_E4M3 latent, which is codes x scale (QuantizeRun of all its
  // channels, with a power of two for a scale); absent otherwise.
  TensorView scales;
};

// The planes of `pages` pages at `data` (which may be null when only shapes count).
// REQUIRES: latents and keys are among them, and scales where latents are F8_E4M3.
inline KvPages PagesAt(const KvFormat& format, std::byte* data, int64_t pages) {
  const auto view = [&](const KvPlane& plane) {
    return TensorView(
        data == nullptr ? nullptr : data + format.Offset(plane.part), plane.dtype,
        {pages, kPageTokens, plane.width},
        {format.page_bytes() / static_cast<int64_t>(ByteSize(plane.dtype)), plane.width, 1});
  };
  KvPages views{.latent = view(format.At(KvPart::kLatent)),
                .rope = view(format.At(KvPart::kRope)),
                .scales = {}};
  if (const KvPlane* scales = format.Find(KvPart::kLatentScale); scales != nullptr) {
    const TensorView plane = view(*scales);
    views.scales = TensorView(plane.data(), plane.dtype(), {pages, kPageTokens},
                              {plane.stride(0), plane.stride(1)});
  }
  return views;
}

}  // namespace fathom
