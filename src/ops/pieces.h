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

// Of a piece that holds tokens: those that are read, and the most that it has room for.
inline MeetingRanks::Bounds TokenBounds(int64_t read, int64_t capacity, size_t token_bytes) {
  return {static_cast<size_t>(read) * token_bytes, static_cast<size_t>(capacity) * token_bytes};
}

template <class T>
const T* As(std::span<const std::byte> piece) {
  return reinterpret_cast<const T*>(piece.data());
}

}  // namespace fathom
