#include "chat/jinja/numbers.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

#include "chat/jinja/text.h"

namespace fathom::jinja {
namespace {

int DigitValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

std::string Stripped(std::string_view text) {
  return Strip(SpannedText(text, false), Side::kBoth, std::nullopt).text();
}

// Without its underscores; nothing if one is not between two digits.
std::optional<std::string> WithoutUnderscores(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || i + 1 == text.size() || DigitValue(text[i - 1]) > 35 ||
               DigitValue(text[i + 1]) > 35) {
      return std::nullopt;
    }
  }
  return digits;
}

}  // namespace

std::optional<Int> ParseInt(std::string_view text, Int base) {
  const std::string stripped = Stripped(text);
  std::string_view rest = stripped;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.size() > 2 && rest[0] == '0') {
    const char letter = static_cast<char>(rest[1] | 0x20);
    const Int prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefix != 0 && (base == 0 || base == prefix)) {
      base = prefix;
      rest.remove_prefix(rest[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  const std::optional<std::string> digits = WithoutUnderscores(rest);
  if (!digits || digits->empty() || base < 2 || base > 36) return std::nullopt;
  Int number = 0;
  for (const char c : *digits) {
    const int digit = DigitValue(c);
    if (digit >= base || __builtin_mul_overflow(number, base, &number) ||
        __builtin_sub_overflow(number, Int{digit}, &number)) {
      return std::nullopt;
    }
  }
  // Collected as a negative number, of which there is one more.
  if (!negative && __builtin_sub_overflow(Int{0}, number, &number)) return std::nullopt;
  return number;
}

std::optional<double> ParseFloat(std::string_view text) {
  std::optional<std::string> stripped = WithoutUnderscores(Stripped(text));
  if (!stripped) return std::nullopt;
  std::string_view rest = *stripped;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (end != rest.data() + rest.size() || rest.find('(') != std::string_view::npos) {
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range) {  // as Python: infinity, or zero
    const size_t e = rest.find_first_of("eE");
    const bool tiny = e != std::string_view::npos && rest.substr(e).find('-') != rest.npos;
    number = tiny ? 0.0 : std::numeric_limits<double>::infinity();
  } else if (error != std::errc()) {
    return std::nullopt;
  }
  return negative ? -number : number;
}

}  // namespace fathom::jinja
