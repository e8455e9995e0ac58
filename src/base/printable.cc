#include "base/printable.h"

#include <fmt/format.h>

namespace fathom {
namespace {

std::string WithoutControls(std::string_view text, std::string_view kept) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (c == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F are controls too
      result += '?';
      ++i;
    } else if ((c < 0x20 || c == 0x7f) && kept.find(text[i]) == std::string_view::npos) {
      result += '?';
    } else {
      result += text[i];
    }
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
