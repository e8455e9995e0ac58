#include "tokenizer/regex_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/printable.h"

namespace fathom {
namespace {

constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// Walks the pattern once, copying what both engines read alike.
class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  Result<std::string> Run() {
    while (at_ < in_.size()) TRY(Next());
    if (in_class_)
      return InvalidArgument("the regular expression '{}' lacks a ']'", Printable(in_));
    return std::move(out_);
  }

 private:
  std::string_view Rest() const { return in_.substr(at_); }
  bool Take(std::string_view text) {
    if (!Rest().starts_with(text)) return false;
    out_ += text;
    at_ += text.size();
    return true;
  }
  void Replace(size_t size, std::string_view by) {
    out_ += by;
    at_ += size;
  }
  Status Refuse(std::string_view construct) const {
    return Unimplemented(
        "the regular expression '{}' uses {} at byte {}, which is not supported: write it with "
        "plain groups, classes, \\p{{...}} and look-arounds",
        Printable(in_), construct, at_);
  }

  Status Next() {
    const char c = in_[at_];
    if (c == '\\') return Escape();
    if (in_class_) return InClass(c);
    switch (c) {
      case '[': return OpenClass();
      case '(': return Group();
      case '{': return Interval();
      default: Replace(1, in_.substr(at_, 1)); return {};
    }
  }

  Status OpenClass() {
    Take("[");
    Take("^");
    if (Rest().starts_with("]")) return Refuse("']' as the first of a class");
    in_class_ = true;
    return {};
  }

  Status InClass(char c) {
    if (c == '[') return Refuse("a class inside a class");
    if (Rest().starts_with("&&")) return Refuse("the class intersection '&&'");
    if (c == ']') in_class_ = false;
    Replace(1, in_.substr(at_, 1));
    return {};
  }

  Status Group() {
    if (Rest().starts_with("(*")) return Refuse("'(*'");
    for (const char* opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (Take(opening)) return {};
    }
    if (Rest().starts_with("(?")) return Refuse(fmt::format("'{}'", Rest().substr(0, 4)));
    Take("(");
    return {};
  }

  // {n}, {n,} and {n,m}; what may follow them means different things to the two engines.
  Status Interval() {
    size_t end = 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < Rest().size() && std::isdigit(static_cast<unsigned char>(Rest()[end]))) ++end;
      return end > begin;
    };
    bool well_formed = digits();
    if (well_formed && end < Rest().size() && Rest()[end] == ',') ++end, digits();
    well_formed = well_formed && end < Rest().size() && Rest()[end] == '}';
    if (!well_formed) return Refuse("'{' other than {n}, {n,} or {n,m} (write \\{ for the brace)");
    const std::string_view after = Rest().substr(end + 1);
    if (after.starts_with("+") || after.starts_with("?")) return Refuse("a '+' or '?' after '}'");
    Replace(end + 1, Rest().substr(0, end + 1));
    return {};
  }

  Status Escape() {
    if (Rest().size() < 2)
      return InvalidArgument("the regular expression '{}' ends in '\\'", Printable(in_));
    const char c = Rest()[1];
    if (!std::isalnum(static_cast<unsigned char>(c))) {
      Take("\\");  // the character follows, whatever it is
      Replace(1, in_.substr(at_, 1));
      return {};
    }
    switch (c) {
      case 's': Replace(2, "\\p{White_Space}"); return {};
      case 'S': Replace(2, "\\P{White_Space}"); return {};
      case 'd': Replace(2, "\\p{Nd}"); return {};
      case 'D': Replace(2, "\\P{Nd}"); return {};
      case 'w': Replace(2, in_class_ ? std::string(kWord) : fmt::format("[{}]", kWord)); return {};
      case 'W':
        if (in_class_) return Refuse("\\W inside a class");
        Replace(2, fmt::format("[^{}]", kWord));
        return {};
      case 'v': Replace(2, "\\x0b"); return {};
      case 'p':
      case 'P': return Property();
      case 'u': return CodePoint();
      case 'A':
      case 'z':
      case 'Z':
        if (in_class_) break;
        [[fallthrough]];
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e': Replace(2, Rest().substr(0, 2)); return {};
      default: break;
    }
    return Refuse(fmt::format("'\\{}'", c));
  }

  Status CodePoint() {
    const std::string_view digits = Rest().substr(2, 4);
    if (digits.size() < 4 || !std::ranges::all_of(digits, [](unsigned char digit) {
          return std::isxdigit(digit) != 0;
        })) {
      return Refuse("\\u without four hexadecimal digits");
    }
    Replace(6, fmt::format("\\x{{{}}}", digits));
    return {};
  }

  // General categories keep their names; any other name has to be a script. PCRE2 reads a bare
  // script name as the Script_Extensions property, Oniguruma as Script.
  Status Property() {
    static constexpr std::array<std::string_view, 37> kCategories = {
        "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
        "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
        "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn", "Any"};
    const size_t close = Rest().find('}');
    if (Rest().size() < 3 || Rest()[2] != '{' || close == std::string_view::npos) {
      return Refuse("a \\p without {...}");
    }
    std::string_view name = Rest().substr(3, close - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const bool category = std::ranges::find(kCategories, name) != kCategories.end();
    const bool script = name.size() > 2 && std::ranges::all_of(name, [](unsigned char letter) {
                          return std::isalpha(letter) || letter == '_';
                        });
    if (!category && !script) return Refuse(fmt::format("the property '{}'", name));
    Replace(close + 1, fmt::format("\\{}{{{}{}{}}}", Rest()[1], negated ? "^" : "",
                                   category ? "" : "sc:", name));
    return {};
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

Result<std::string> TranslateOniguruma(std::string_view pattern) {
  return Translator(pattern).Run();
}

std::string EscapeRegex(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c))) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace fathom
