// The bounds of one render.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/spanned_text.h"
#include "base/status.h"
#include "base/thread_bytes.h"
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
  explicit Budget(const WorkLimits& limits) : limits_(limits), made_(limits) {}

  // From here on, what this thread takes of the heap is the template's.
  void Begin() { heap_before_ = ThreadBytes(); }

  Status Spend(size_t work) {
    if (work > left_) {
      left_ = 0;
      return ResourceExhausted("the template takes more than {} steps", kMaxWork);
    }
    left_ -= work;
    unchecked_ += work;
    if (unchecked_ < kCheckedWork) return {};
    unchecked_ = 0;
    TRY(limits_.Check());
    return Hold(0);
  }
  // For a text of `bytes` bytes in `spans` spans. Call it before making one whose size is not
  // within a small factor of its inputs'.
  Status SpendText(size_t bytes, size_t spans = 1) {
    if (bytes > kMaxTextBytes) {
      return ResourceExhausted("the template makes a text of more than {} bytes", kMaxTextBytes);
    }
    TRY(Spend(bytes / 16 + spans));
    return bytes < kLargeText ? Status() : Hold(bytes + spans * sizeof(SpannedText::Span));
  }
  Status SpendText(const SpannedText& text) {
    return SpendText(text.text().size(), text.spans().size());
  }
  // What has been made since Begin() and is still there, and `coming` bytes, are claimed.
  Status Hold(size_t coming) {
    const int64_t made = std::max<int64_t>(ThreadBytes() - heap_before_, 0);
    return made_.Hold(static_cast<size_t>(made) + coming);
  }

 private:
  static constexpr size_t kCheckedWork = 4096;
  static constexpr size_t kLargeText = size_t{16} << 10;

  const WorkLimits limits_;
  BesideClaim made_;
  int64_t heap_before_ = 0;
  size_t left_ = kMaxWork;
  size_t unchecked_ = 0;
};

}  // namespace fathom::jinja
