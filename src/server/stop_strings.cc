#include "server/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fathom {

StopStrings::StopStrings(std::vector<std::string> strings) {
  for (std::string& text : strings) {
    CHECK(!text.empty(), "an empty stop string");
    Pattern pattern{std::move(text), {}};
    pattern.border.assign(pattern.text.size(), 0);
    for (size_t i = 1, length = 0; i < pattern.text.size(); ++i) {
      while (length > 0 && pattern.text[i] != pattern.text[length]) {
        length = pattern.border[length - 1];
      }
      if (pattern.text[i] == pattern.text[length]) ++length;
      pattern.border[i] = length;
    }
    patterns_.push_back(std::move(pattern));
  }
}

StopMatcher::StopMatcher(std::shared_ptr<const StopStrings> strings)
    : strings_(std::move(strings)), progress_(strings_ ? strings_->patterns_.size() : 0, 0) {}

std::string StopMatcher::Push(std::string_view text, bool include_match) {
  CHECK(!matched_, "text after a stop string");
  if (progress_.empty()) return std::string(text);
  size_t longest = 0;
  for (const char c : text) {
    held_ += c;
    longest = 0;
    size_t match = 0;
    for (size_t i = 0; i < progress_.size(); ++i) {
      const StopStrings::Pattern& pattern = strings_->patterns_[i];
      size_t& length = progress_[i];
      while (length > 0 && c != pattern.text[length]) length = pattern.border[length - 1];
      if (c == pattern.text[length]) ++length;
      longest = std::max(longest, length);
      if (length == pattern.text.size() && length > match) {
        match = length;
        matched_ = pattern.text;
      }
    }
    if (matched_) {
      held_.resize(held_.size() - (include_match ? 0 : match));
      return std::exchange(held_, {});
    }
  }
  if (text.empty()) return {};
  std::string free = held_.substr(0, held_.size() - longest);
  held_.erase(0, free.size());
  return free;
}

std::string StopMatcher::Flush() {
  std::fill(progress_.begin(), progress_.end(), 0);
  return std::exchange(held_, {});
}

}  // namespace fathom
