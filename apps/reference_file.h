// What another implementation computed, as tests/golden/README.md describes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace fathom {

struct ReferencePrompt {
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;     // the greedy continuation; may be empty
  std::vector<int32_t> positions;  // prompt positions with stored logits, rising
  std::vector<float> logits;       // [positions, vocab]
  std::vector<int32_t> top_ids;    // [prompt, top_width], or empty
  std::vector<float> top_logprobs;
  int64_t top_width = 0;
  std::vector<TokenId> draft;  // [prompt + greedy - 1]: the MTP layer's choices, or empty
};

// Reads either format. Refuses tensors whose shapes do not fit each other or `vocab`.
Result<std::vector<ReferencePrompt>> ReadReference(const std::string& path, int64_t vocab);

}  // namespace fathom
