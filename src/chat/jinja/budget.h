// The bounds of one render.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/spanned_text.h"
#include "base/status.h"
#include "base/work_limits.h"

namespace fathom::jinja {

inline constexpr size_t kMaxWork = 10'000'000;     // steps; 16 bytes of text made are one
inline constexpr int kMaxDepth = 400;              // nested evaluations, macro calls included
inline constexpr int kMaxValueDepth = 64;          // lists within lists
inline constexpr size_t kMaxRangeItems = 100'000;  // as jinja2's sandbox
inline constexpr size_t kMaxTextBytes = size_t{64} << 20;  // of one string
inline constexpr size_t kCharacterWork = 8;                // for a character as a text of its own

class Budget {
 public:
  explicit Budget(const WorkLimits& limits) : limits_(limits), texts_(limits) {}

  Status Spend(size_t work) {
    if (work > left_) {
      left_ = 0;
      return ResourceExhausted("the template takes more than {} steps", kMaxWork);
    }
    left_ -= work;
    unchecked_ += work;
    if (unchecked_ < kCheckedWork) return {};
    unchecked_ = 0;
    return limits_.Check();
  }
  // For a text of `bytes` bytes in `spans` spans. Call it before making one whose size is not
  // within a small factor of its inputs'.
  Status SpendText(size_t bytes, size_t spans = 1) {
    if (bytes > kMaxTextBytes) {
      return ResourceExhausted("the template makes a text of more than {} bytes", kMaxTextBytes);
    }
    TRY(Spend(bytes / 16 + spans));
    longest_ = std::max(longest_, bytes + spans * sizeof(SpannedText::Span));
    return HoldTexts(0);
  }
  Status SpendText(const SpannedText& text) {
    return SpendText(text.text().size(), text.spans().size());
  }
  // For what is printed, before it is.
  Status SpendPrinted(const SpannedText& text, const SpannedText& printed) {
    TRY(SpendText(text));
    return HoldTexts(printed.BytesToAppend(text));
  }
  // For a text that is kept, to the end as far as is known here.
  void Keep(const SpannedText& text) { kept_ += text.BytesToAppend({}); }

 private:
  static constexpr size_t kCheckedWork = 4096;
  static constexpr size_t kClaimedAtOnce = size_t{4} << 10;

  // What is printed and kept, and the longest text that is made of others, which may take the place
  // of one as long.
  Status HoldTexts(size_t printed) {
    const size_t bytes = kept_ + printed + 2 * longest_;
    return bytes <= texts_.held() ? Status() : texts_.Hold(bytes + kClaimedAtOnce);
  }

  const WorkLimits limits_;
  BesideClaim texts_;
  size_t kept_ = 0, longest_ = 0;  // bytes
  size_t left_ = kMaxWork;
  size_t unchecked_ = 0;
};

}  // namespace fathom::jinja
