// Tensors as what CPU ranks bring to a meeting.
#pragma once

#include <cstdint>
#include <span>

#include "parallel/meeting_ranks.h"
#include "tensor/tensor_view.h"

namespace fathom {

// Tokens [begin, end) of `x` [tokens, ...], which is contiguous.
inline std::span<const std::byte> PieceOf(const TensorView& x, int64_t begin, int64_t end) {
  CHECK(x.contiguous() && begin <= end && end <= x.dim(0));
  const auto token = static_cast<size_t>(x.stride(0)) * ByteSize(x.dtype());
  return {static_cast<const std::byte*>(x.data()) + static_cast<size_t>(begin) * token,
          static_cast<size_t>(end - begin) * token};
}

template <class T>
const T* As(std::span<const std::byte> piece) {
  return reinterpret_cast<const T*>(piece.data());
}

}  // namespace fathom
