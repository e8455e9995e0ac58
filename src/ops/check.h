// What the contracts of ops are made of: a violation is a bug and stops the process.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "ops/ops.h"
#include "tensor/tensor_view.h"

namespace fathom {

// `name` is op and argument: "linear: x". The view must have this type and shape; its innermost
// dimension must be contiguous.
void CheckStrided(std::string_view name, const TensorView& view, DType dtype,
                  std::initializer_list<int64_t> shape);
// As CheckStrided, and the whole contiguous.
void CheckTensor(std::string_view name, const TensorView& view, DType dtype,
                 std::initializer_list<int64_t> shape);
// An activation: F32 or BF16, of this rank.
void CheckActivation(std::string_view name, const TensorView& view, int rank);
// The same numbers at the same place.
void CheckSame(std::string_view name, const TensorView& view, const TensorView& other);
// I32 [1].
void CheckLive(std::string_view name, const TensorView& view);
// Absent, or of x [tokens, width].
void CheckQuantized(std::string_view name, const QuantizedCopy& copy, const TensorView& x);
// A copy, where there is one, as products with this weight quantise.
void CheckReads(std::string_view name, const QuantizedCopy& copy, const PackedWeight& weight);
// Slots, positions, page table and live count for `tokens` tokens.
void CheckTokenMap(std::string_view op, const TokenMap& map, int64_t tokens);
// Planes of equal page count and of types that go together (kv_format.h).
void CheckPages(std::string_view op, const KvPages& pages);
// At most kMaxContextPieces, which fill `context` positions one after another.
void CheckPieces(std::string_view op, std::span<const ContextPiece> pieces, int64_t context);
// A weight of this table that is there.
void CheckWeight(std::string_view name, const PackedWeight* weight);

}  // namespace fathom
