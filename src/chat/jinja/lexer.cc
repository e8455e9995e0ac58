#include "chat/jinja/lexer.h"

#include <algorithm>

#include "chat/jinja/numbers.h"
#include "chat/jinja/text.h"

namespace fathom::jinja {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}
bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool IsNameChar(char c) {
  return IsNameStart(c) || IsDigit(c);
}
bool IsBlank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Line ends are \n; one at the end is dropped.
std::string NormalizeLineEnds(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const bool crlf = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (crlf) continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = FindTag();
      TRY(Data(tag));
      if (tag == source_.size()) break;
      const char kind = source_[tag + 1];
      if (kind == '#') {
        TRY(Comment());
      } else if (kind == '%' && AtRaw("raw")) {
        TRY(Raw());
      } else {
        TRY(Inside(kind == '%'));
      }
    }
    Add(Token::Kind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  // Where the next {%, {# or {{ begins.
  size_t FindTag() const {
    for (size_t at = source_.find('{', at_); at != std::string_view::npos;
         at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && std::string_view("%#{").find(source_[at + 1]) != kNone) {
        return at;
      }
    }
    return source_.size();
  }

  // The text up to `end`, which is a tag or the end of the source.
  Status Data(size_t end) {
    std::string_view text = source_.substr(at_, end - at_);
    if (end < source_.size()) {
      const char sign = end + 2 < source_.size() ? source_[end + 2] : '\0';
      text = TrimBefore(text, sign, /*is_block=*/source_[end + 1] != '{');
    }
    if (!text.empty()) Add(Token::Kind::kData, std::string(text));
    MoveTo(end);
    return {};
  }

  // `text` without the whitespace that a tag behind it strips.
  std::string_view TrimBefore(std::string_view text, char sign, bool is_block) const {
    if (sign == '-') {
      size_t end = 0;
      for (size_t at = 0; at < text.size();) {
        if (!IsSpace(NextCodePoint(text, at))) end = at;
      }
      return text.substr(0, end);
    }
    if (sign == '+' || !is_block) return text;
    const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
    if (line == 0 && !line_starting_) return text;
    for (size_t at = line; at < text.size();) {
      if (!IsSpace(NextCodePoint(text, at))) return text;
    }
    return text.substr(0, line);
  }

  // Moves behind `end_tag` ("%}" with its sign, if any) and the whitespace that it strips.
  void SkipEnd(char sign, bool trims_line) {
    MoveTo(at_ + (sign == '\0' ? 2 : 3));
    if (sign == '-') {
      SkipSpace();
    } else if (sign == '\0' && trims_line && at_ < source_.size() && source_[at_] == '\n') {
      MoveTo(at_ + 1);
    }
    line_starting_ = source_[at_ - 1] == '\n';
  }

  void SkipSpace() {
    while (at_ < source_.size()) {
      size_t next = at_;
      if (!IsSpace(NextCodePoint(source_, next))) return;
      MoveTo(next);
    }
  }

  Status Comment() {
    const char sign = at_ + 2 < source_.size() ? source_[at_ + 2] : '\0';
    const size_t begin = at_ + (sign == '-' || sign == '+' ? 3 : 2);
    const size_t close = source_.find("#}", begin);
    if (close == kNone) return SyntaxError(line_, "a comment does not end");
    const char before = source_[close - 1];
    const bool signed_end = close > begin && (before == '-' || before == '+');
    MoveTo(signed_end ? close - 1 : close);
    SkipEnd(signed_end ? before : '\0', /*trims_line=*/true);
    return {};
  }

  // Whether {% word %} begins at at_, with any signs and spaces. Then `end` is at its "%}".
  bool AtWord(size_t at, std::string_view word, size_t& end) const {
    at += 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    while (at < source_.size() && IsBlank(source_[at])) ++at;
    if (!source_.substr(at).starts_with(word)) return false;
    at += word.size();
    while (at < source_.size() && IsBlank(source_[at])) ++at;
    end = at;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    return source_.substr(at).starts_with("%}");
  }
  bool AtRaw(std::string_view word) const {
    size_t end = 0;
    return AtWord(at_, word, end) && source_[end] != '+';
  }

  Status Raw() {
    const int line = line_;
    size_t end = 0;
    AtWord(at_, "raw", end);
    MoveTo(end);
    SkipEnd(source_[at_] == '-' ? '-' : '\0', /*trims_line=*/false);
    for (size_t tag = source_.find("{%", at_); tag != kNone; tag = source_.find("{%", tag + 1)) {
      if (!AtWord(tag, "endraw", end)) continue;
      TRY(Data(tag));
      MoveTo(end);
      SkipEnd(source_[at_] == '%' ? '\0' : source_[at_], /*trims_line=*/true);
      return {};
    }
    return SyntaxError(line, "a raw block does not end");
  }

  // The tokens of {% ... %} or {{ ... }}.
  Status Inside(bool block) {
    Add(block ? Token::Kind::kBlockBegin : Token::Kind::kPrintBegin, {});
    MoveTo(at_ + 2);
    if (Peek() == '-' || Peek() == '+') MoveTo(at_ + 1);
    const std::string_view close = block ? "%}" : "}}";
    std::string open_brackets;
    while (true) {
      while (IsBlank(Peek())) MoveTo(at_ + 1);
      if (at_ >= source_.size()) return SyntaxError(line_, "a tag does not end");
      const std::string_view rest = source_.substr(at_);
      if (open_brackets.empty()) {
        const bool has_sign = rest[0] == '-' || (block && rest[0] == '+');
        if (rest.substr(has_sign ? 1 : 0).starts_with(close)) {
          Add(block ? Token::Kind::kBlockEnd : Token::Kind::kPrintEnd, {});
          SkipEnd(has_sign ? rest[0] : '\0', /*trims_line=*/block);
          return {};
        }
      }
      TRY(One(open_brackets));
    }
  }

  // One token within a tag.
  Status One(std::string& open_brackets) {
    const char c = Peek();
    if (IsDigit(c)) return Number();
    if (c == '\'' || c == '"') return String(c);
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < source_.size() && IsNameChar(source_[end])) ++end;
      Add(Token::Kind::kName, std::string(source_.substr(at_, end - at_)));
      MoveTo(end);
      return {};
    }
    static constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!source_.substr(at_).starts_with(op)) continue;
      TRY(Balance(op[0], open_brackets));
      Add(Token::Kind::kOperator, std::string(op));
      MoveTo(at_ + op.size());
      return {};
    }
    return SyntaxError(line_, fmt::format("unexpected character '{}'", Character()));
  }

  Status Balance(char c, std::string& open_brackets) const {
    if (c == '(') open_brackets += ')';
    if (c == '[') open_brackets += ']';
    if (c == '{') open_brackets += '}';
    if (c != ')' && c != ']' && c != '}') return {};
    if (open_brackets.empty() || open_brackets.back() != c) {
      return SyntaxError(line_, fmt::format("unexpected '{}'", c));
    }
    open_brackets.pop_back();
    return {};
  }

  // Digits with single underscores between them, from `at`; where they end.
  size_t Digits(size_t at) const {
    while (at < source_.size() &&
           (IsDigit(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() &&
                                     IsDigit(source_[at - 1]) && IsDigit(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  Status Number() {
    size_t end = Digits(at_);
    const auto is = [&](size_t at, std::string_view set) {
      return at < source_.size() && set.find(source_[at]) != kNone;
    };
    const auto is_digit = [&](size_t at) { return at < source_.size() && IsDigit(source_[at]); };
    bool real = false;
    if (is(end, ".") && is_digit(end + 1)) {
      end = Digits(end + 1);
      real = true;
    }
    if (is(end, "eE") && is_digit(end + (is(end + 1, "+-") ? 2 : 1))) {
      end = Digits(end + (is(end + 1, "+-") ? 2 : 1));
      real = true;
    }
    if (!real && source_[at_] == '0' && is(at_ + 1, "xXoObB")) {
      end = at_ + 2;
      while (end < source_.size() && IsNameChar(source_[end])) ++end;
    }
    const std::string text(source_.substr(at_, end - at_));
    Token token{real ? Token::Kind::kFloat : Token::Kind::kInteger, line_, text};
    const std::optional<Int> integer = real ? Int{0} : ParseInt(text, 0);
    if (!integer) return SyntaxError(line_, "bad number " + text);
    token.integer = *integer;
    if (real) token.number = *ParseFloat(text);
    tokens_.push_back(std::move(token));
    MoveTo(end);
    return {};
  }

  Status String(char quote) {
    const int line = line_;
    std::string text;
    size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] == '\\') {
        TRY(Escape(at, text));
      } else {
        text += source_[at++];
      }
    }
    if (at >= source_.size()) return SyntaxError(line, "a string does not end");
    Add(Token::Kind::kString, std::move(text));
    MoveTo(at + 1);
    return {};
  }

  // A backslash and what it stands for; `at` moves behind. As Python's string literals.
  Status Escape(size_t& at, std::string& text) const {
    const char c = at + 1 < source_.size() ? source_[at + 1] : '\0';
    constexpr std::string_view kLetters = "\\'\"abfnrtv\n";
    constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const size_t letter = kLetters.find(c);
    const size_t hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (letter != kNone) {
      if (letter < kMeanings.size()) text += kMeanings[letter];
      at += 2;
    } else if (hex > 0) {
      const std::string digits(source_.substr(std::min(at + 2, source_.size()), hex));
      const bool plain = std::all_of(digits.begin(), digits.end(), isxdigit);
      const std::optional<Int> code = plain ? ParseInt(digits, 16) : std::nullopt;
      if (digits.size() != hex || !code || *code > 0x10FFFF ||
          (*code >= 0xD800 && *code < 0xE000)) {
        return SyntaxError(line_, "bad escape in a string");
      }
      AppendCodePoint(static_cast<char32_t>(*code), text);
      at += 2 + hex;
    } else if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t end = at + 1;
      for (; end < std::min(at + 4, source_.size()) && source_[end] >= '0' && source_[end] <= '7';
           ++end) {
        code = code * 8 + static_cast<uint32_t>(source_[end] - '0');
      }
      AppendCodePoint(code, text);
      at = end;
    } else if (c == 'N') {
      return Unimplemented("chat template, line {}: \\N in a string is not supported", line_);
    } else {
      text += source_[at++];  // an unknown escape stays as it is
      if (at < source_.size()) text += source_[at++];
    }
    return {};
  }

  char Peek() const { return at_ < source_.size() ? source_[at_] : '\0'; }
  std::string_view Character() const {
    size_t end = at_;
    NextCodePoint(source_, end);
    return source_.substr(at_, end - at_);
  }
  void MoveTo(size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    at_ = at;
  }
  void Add(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, line_, std::move(text)});
  }

  static constexpr size_t kNone = std::string_view::npos;
  const std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended a line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Tokenize(std::string_view source) {
  const std::string normalized = NormalizeLineEnds(source);
  return Lexer(normalized).Run();
}

Status SyntaxError(int line, std::string_view what) {
  return InvalidArgument("chat template, line {}: {}", line, what);
}

}  // namespace fathom::jinja
