#include "engine/recorded_sizes.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace fathom {
namespace {

// Numbers of rows that are worth a record each: they grow by a third at most from 16 on.
std::vector<int64_t> StepSizes(int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < most; size = size < 8    ? size * 2
                                             : size < 64 ? size + 8
                                                         : (size + size / 3) / 16 * 16) {
    sizes.push_back(size);
  }
  sizes.push_back(most);
  return sizes;
}

// Drafts of each row that are worth sizes of their own: none, 1, 2, 4, and so on up to the most.
// What is between them is padded.
std::vector<int64_t> DraftDepths(int64_t most) {
  std::vector<int64_t> depths = {0};
  for (int64_t depth = 1; depth < most; depth *= 2) depths.push_back(depth);
  if (most > 0) depths.push_back(most);
  return depths;
}

}  // namespace

std::vector<BatchCapacity> RecordedSizes(const ModelOptions& options) {
  std::vector<BatchCapacity> sizes;
  for (const int64_t drafts : DraftDepths(options.max_drafts)) {
    const int64_t of_row = 1 + drafts;
    const int64_t most_rows = std::min(options.max_rows, options.max_tokens / of_row);
    if (most_rows == 0) break;
    for (const int64_t rows : StepSizes(most_rows)) {
      sizes.push_back({.rows = rows, .tokens = rows * of_row, .logit_vectors = rows * of_row});
    }
  }
  std::sort(sizes.begin(), sizes.end(), [](const BatchCapacity& a, const BatchCapacity& b) {
    return std::pair(a.tokens, b.rows) < std::pair(b.tokens, a.rows);
  });
  return sizes;
}

}  // namespace fathom
