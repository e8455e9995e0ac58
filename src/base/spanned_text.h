// Text that remembers which of its bytes come from a trusted template and which from a user.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

// UTF-8 text in runs of equal trust. Only trusted text may yield special tokens.
class SpannedText {
 public:
  struct Span {
    size_t end;  // byte offset where the run ends; it begins where the one before ends
    bool trusted;
    friend bool operator==(const Span&, const Span&) = default;
  };

  SpannedText() = default;
  SpannedText(std::string_view text, bool trusted) { Append(text, trusted); }

  void Reserve(size_t bytes, size_t spans) {
    text_.reserve(bytes);
    spans_.reserve(spans);
  }
  void Append(std::string_view text, bool trusted) {
    if (text.empty()) return;
    text_ += text;
    if (!spans_.empty() && spans_.back().trusted == trusted) {
      spans_.back().end = text_.size();
    } else {
      spans_.push_back({text_.size(), trusted});
    }
  }
  void Append(const SpannedText& other) {
    size_t begin = 0;
    for (const Span& span : other.spans_) {
      Append(std::string_view(other.text_).substr(begin, span.end - begin), span.trusted);
      begin = span.end;
    }
  }
  // The bytes [begin, end) with their trust. REQUIRES: begin <= end <= text().size().
  SpannedText Slice(size_t begin, size_t end) const {
    SpannedText slice;
    size_t at = 0;
    for (const Span& span : spans_) {
      const size_t from = at < begin ? begin : at, to = span.end < end ? span.end : end;
      if (from < to) slice.Append(std::string_view(text_).substr(from, to - from), span.trusted);
      at = span.end;
    }
    return slice;
  }

  const std::string& text() const { return text_; }
  const std::vector<Span>& spans() const { return spans_; }

 private:
  std::string text_;
  std::vector<Span> spans_;  // increasing ends; neighbours differ in trust
};

}  // namespace fathom
