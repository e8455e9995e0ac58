// Python's string operations on text that keeps its spans of trust. Indices are code points, as in
// Python; case mapping is Unicode's simple one (one code point to one).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/spanned_text.h"
#include "base/status.h"

namespace fathom::jinja {

// Cuts pieces out of a text from left to right, in linear time for all pieces together.
class Cutter {
 public:
  explicit Cutter(const SpannedText& text) : text_(text) {}
  // REQUIRES: begin is not less than the `begin` of the call before; begin <= end <= size.
  SpannedText Cut(size_t begin, size_t end);

 private:
  const SpannedText& text_;
  size_t span_ = 0;
};

// An error if the system has no Unicode character tables (the C.UTF-8 locale).
Status CheckCharacterTables();

// The code point at `at`, which moves behind it. Bytes that are not UTF-8 count one by one.
char32_t NextCodePoint(std::string_view text, size_t& at);
void AppendCodePoint(char32_t code_point, std::string& text);
size_t CodePoints(std::string_view text);
// Byte offset of code point `index`, or the size of the text.
size_t ByteOffset(std::string_view text, size_t index);
bool IsSpace(char32_t code_point);

std::vector<SpannedText> Characters(const SpannedText& text);
SpannedText Reversed(const SpannedText& text);

enum class Side { kLeft, kRight, kBoth };
// Without `chars`, strips whitespace.
SpannedText Strip(const SpannedText& text, Side side, std::optional<std::string_view> chars);
// At most `max` cuts (all when negative), from the left or from the right. Without a separator,
// splits at runs of whitespace. REQUIRES: the separator is not empty.
std::vector<SpannedText> Split(const SpannedText& text, std::optional<std::string_view> separator,
                               int64_t max, bool from_right);
std::vector<SpannedText> SplitLines(const SpannedText& text);
// Bytes of the result of Replace. `max` negative: all.
size_t CountReplacements(std::string_view text, std::string_view from, int64_t max);
SpannedText Replace(const SpannedText& text, std::string_view from, const SpannedText& to,
                    int64_t max);

enum class Case { kUpper, kLower, kCapitalize, kTitle, kTitleFilter };
SpannedText MapCase(const SpannedText& text, Case to);

enum class Class { kDigit, kAlpha, kAlnum, kSpace, kUpper, kLower };
// Python's isdigit() and its like. Digits are the ASCII ones.
bool IsAll(std::string_view text, Class of);

}  // namespace fathom::jinja
