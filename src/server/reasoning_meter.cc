#include "server/reasoning_meter.h"

#include <algorithm>

namespace fathom {

std::pair<size_t, size_t> ReasoningMeter::End(const std::vector<GeneratedToken>& tokens) {
  if (!within_) return {0, 0};
  const auto place = [&tokens](const std::optional<TokenId>& marker) {
    const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const GeneratedToken& token) {
      return marker && token.id == *marker;
    });
    return static_cast<size_t>(found - tokens.begin());
  };
  size_t from = 0, to = tokens.size();
  if (!after_) to = std::min(to, place(end_think_) + 1);
  if (!before_ && place(think_) < to) from = place(think_);
  tokens_ += static_cast<int64_t>(to - from);
  return {from, to};
}

}  // namespace fathom
