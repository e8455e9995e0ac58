#include "ops/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace fathom {
namespace {

bool HasShape(const TensorView& view, std::initializer_list<int64_t> shape) {
  if (view.rank() != static_cast<int>(shape.size())) return false;
  int i = 0;
  return std::all_of(shape.begin(), shape.end(), [&](int64_t d) { return view.dim(i++) == d; });
}

}  // namespace

void CheckStrided(std::string_view name, const TensorView& view, DType dtype,
                  std::initializer_list<int64_t> shape) {
  CHECK(view.dtype() == dtype && HasShape(view, shape), "{} is {}, not {} [{}]", name,
        view.ToString(), Name(dtype), fmt::join(shape, ", "));
  CHECK(view.innermost_contiguous(), "{}: the innermost stride is {}, not 1", name,
        view.stride(view.rank() - 1));
}

void CheckTensor(std::string_view name, const TensorView& view, DType dtype,
                 std::initializer_list<int64_t> shape) {
  CheckStrided(name, view, dtype, shape);
  CHECK(view.contiguous(), "{} must be contiguous", name);
}

void CheckActivation(std::string_view name, const TensorView& view, int rank) {
  CHECK(view.rank() == rank && (view.dtype() == DType::kF32 || view.dtype() == DType::kBF16),
        "{} is {}, not F32 or BF16 of rank {}", name, view.ToString(), rank);
}

void CheckSame(std::string_view name, const TensorView& view, const TensorView& other) {
  CHECK(view.data() == other.data() && view.ToString() == other.ToString(), "{} is {}, not {}",
        name, view.ToString(), other.ToString());
}

void CheckLive(std::string_view name, const TensorView& view) {
  CheckTensor(name, view, DType::kI32, {1});
}

void CheckQuantized(std::string_view name, const QuantizedCopy& copy, const TensorView& x) {
  if (copy.absent()) return;
  const int64_t tokens = x.dim(0), width = x.dim(1);
  CheckTensor(name, copy.codes, DType::kF8E4M3, {tokens, width});
  CHECK(copy.scales.rank() == 2 && copy.scales.dim(1) >= tokens && copy.scales.dim(1) % 32 == 0,
        "{} has scales {}", name, copy.scales.ToString());
  CheckStrided(name, copy.scales, DType::kF32, {(width + 127) / 128, copy.scales.dim(1)});
}

void CheckReads(std::string_view name, const QuantizedCopy& copy, const PackedWeight& weight) {
  CHECK(copy.absent() || (weight.quantize_activations && copy.scale_ue8m0 == weight.scale_ue8m0),
        "{} is not what the weight's products quantise to", name);
}

void CheckTokenMap(std::string_view op, const TokenMap& map, int64_t tokens) {
  CheckTensor(op, map.slots, DType::kI32, {tokens});
  CheckTensor(op, map.positions, DType::kI32, {tokens});
  CHECK(map.page_table.rank() == 2, "{}: page_table is {}", op, map.page_table.ToString());
  CheckTensor(op, map.page_table, DType::kI32, {map.page_table.dim(0), map.page_table.dim(1)});
  CheckLive(op, map.live);
}

void CheckPages(std::string_view op, const KvPages& pages) {
  const bool fp8 = pages.latent.dtype() == DType::kF8E4M3;
  CheckActivation(op, fp8 ? pages.rope : pages.latent, 3);
  CHECK(pages.latent.rank() == 3 && pages.rope.rank() == 3, "{}: the planes are {} and {}", op,
        pages.latent.ToString(), pages.rope.ToString());
  const int64_t n = pages.latent.dim(0);
  CheckStrided(op, pages.latent, pages.latent.dtype(), {n, kPageTokens, pages.latent.dim(2)});
  CheckStrided(op, pages.rope, fp8 ? DType::kBF16 : pages.latent.dtype(),
               {n, kPageTokens, pages.rope.dim(2)});
  CHECK(fp8 == (pages.scales.rank() > 0), "{}: {} latents with scales {}", op,
        Name(pages.latent.dtype()), pages.scales.ToString());
  if (fp8) CheckStrided(op, pages.scales, DType::kF32, {n, kPageTokens});
}

void CheckPieces(std::string_view op, std::span<const ContextPiece> pieces, int64_t context) {
  CHECK(pieces.size() <= kMaxContextPieces, "{}: {} pieces of context, at most {}", op,
        pieces.size(), kMaxContextPieces);
  int64_t end = 0;
  for (const ContextPiece& piece : pieces) {
    CHECK(piece.at == end && piece.begin >= 0 && piece.count >= 0,
          "{}: {} positions from {} stand at {}, not at {}", op, piece.count, piece.begin, piece.at,
          end);
    end += piece.count;
  }
  CHECK(end == context, "{}: pieces of {} positions for {}", op, end, context);
}

void CheckWeight(std::string_view name, const PackedWeight* weight) {
  CHECK(weight != nullptr, "{} is missing", name);
}

}  // namespace fathom
