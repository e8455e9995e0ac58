// The two forms of MLA, and which one a token takes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fathom {

// Absorbed: queries folded into the latent space; expanded: keys and values projected up per head
// (DeepSeek-V2, arXiv:2405.04434, section 2.1).
enum class AttentionForm : uint8_t { kAbsorbed, kExpanded };

// The form is a property of the token, whatever part of its chunk a step computes: a prompt's token
// takes that of its prompt's part of its chunk, [cC, min((c + 1) C, prompt_end)), which is expanded
// if that is longer than `absorbed_limit`. A generated token is always absorbed.
inline AttentionForm FormOfToken(int64_t position, int64_t prompt_end, int64_t chunk,
                                 int64_t absorbed_limit) {
  if (position >= prompt_end) return AttentionForm::kAbsorbed;
  const int64_t begin = position / chunk * chunk;
  return std::min(begin + chunk, prompt_end) - begin > absorbed_limit ? AttentionForm::kExpanded
                                                                      : AttentionForm::kAbsorbed;
}

}  // namespace fathom
