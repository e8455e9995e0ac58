#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>

namespace fathom {
namespace {

// Of the character that `text` begins with; 0 if that is not UTF-8. REQUIRES: it is not empty.
size_t CharacterBytes(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t bytes = at(0) < 0x80                    ? 1
                       : at(0) >= 0xC2 && at(0) < 0xE0 ? 2
                       : (at(0) & 0xF0) == 0xE0        ? 3
                       : at(0) >= 0xF0 && at(0) < 0xF5 ? 4
                                                       : 0;
  if (bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  if (bytes < 3) return bytes;
  const bool overlong = (at(0) == 0xE0 && at(1) < 0xA0) || (at(0) == 0xF0 && at(1) < 0x90);
  const bool no_character = (at(0) == 0xED && at(1) >= 0xA0) || (at(0) == 0xF4 && at(1) >= 0x90);
  return overlong || no_character ? 0 : bytes;
}

std::string WithoutControls(std::string_view text, std::string_view kept) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = CharacterBytes(text.substr(i));
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are controls too.
    const bool control = bytes == 2 && c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    const bool plain_control =
        (c < 0x20 || c == 0x7f) && kept.find(text[i]) == std::string_view::npos;
    if (bytes == 0 || control || plain_control) {
      result += '?';
    } else {
      result += text.substr(i, bytes);
    }
    i += std::max<size_t>(bytes, 1);
  }
  return result;
}

}  // namespace

std::string Printable(std::string_view name, size_t max_bytes) {
  if (name.size() <= max_bytes) return WithoutControls(name, "");
  while (max_bytes > 0 && (static_cast<unsigned char>(name[max_bytes]) & 0xC0) == 0x80) --max_bytes;
  return WithoutControls(name.substr(0, max_bytes), "") + "...";
}

std::string PrintableLines(std::string_view text) {
  return WithoutControls(text, "\n\t");
}

std::string Counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace fathom
