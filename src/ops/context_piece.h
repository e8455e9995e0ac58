// What a row adds to one launch of expanded attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fathom {

// Positions [begin, begin + count) of a slot's context stand at [at, at + count) of the launch's
// keys and are seen, as far as they lie before them, by tokens [token_begin, token_begin + tokens)
// of the batch. A row has at most one piece in a launch; longer contexts take several launches, in
// order of position.
struct ContextPiece {
  int32_t slot = 0;
  int32_t begin = 0;  // absolute; of a row's first piece 0
  int32_t count = 0;
  int32_t at = 0;
  int32_t token_begin = 0;
  int32_t tokens = 0;
};

inline constexpr size_t kMaxContextPieces = 64;  // of a launch

// A launch's pieces as a kernel gets them: by value.
struct ContextPieces {
  ContextPieces() = default;
  explicit ContextPieces(std::span<const ContextPiece> pieces)
      : count(static_cast<int32_t>(pieces.size())) {
    for (size_t i = 0; i < pieces.size(); ++i) of[i] = pieces[i];
  }

  ContextPiece of[kMaxContextPieces];
  int32_t count = 0;
};

}  // namespace fathom
