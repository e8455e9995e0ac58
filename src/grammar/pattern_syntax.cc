#include "grammar/pattern_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>
#include <vector>

namespace fathom {
namespace {

constexpr uint32_t kLastCharacter = 0x10ffff;
constexpr uint32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

struct Range {
  uint32_t first, last;
};
using Ranges = std::vector<Range>;

Ranges Complement(Ranges ranges) {
  std::ranges::sort(ranges, {}, &Range::first);
  Ranges others;
  uint32_t next = 0;
  for (const Range& range : ranges) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = std::max(next, range.last + 1);
  }
  if (next <= kLastCharacter) others.push_back({next, kLastCharacter});
  return others;
}

// Whether one of them stands for itself in a JSON string.
bool AnyIsPlain(const Ranges& ranges) {
  return std::ranges::any_of(ranges, [](const Range& range) {
    for (uint32_t c = std::max<uint32_t>(range.first, ' '); c <= range.last; ++c) {
      if (c == kFirstSurrogate)
        c = kLastSurrogate;
      else if (c != '"' && c != '\\')
        return true;
    }
    return false;
  });
}

bool IsHex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool IsWord(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool IsCount(std::string_view text, int* count) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *count);
  return error == std::errc() && end == text.data() + text.size() && *count >= 0;
}

// The character at `*at`, of UTF-8, which it moves behind.
uint32_t Take(std::string_view text, size_t* at) {
  const auto byte = static_cast<unsigned char>(text[(*at)++]);
  uint32_t character = byte < 0xe0 ? byte & 0x1f : byte < 0xf0 ? byte & 0x0f : byte & 0x07;
  if (byte < 0xc0) character = byte;
  while (byte >= 0xc0 && *at < text.size() && (text[*at] & 0xc0) == 0x80) {
    character = character << 6 | (text[(*at)++] & 0x3f);
  }
  return character;
}

// Each part answers whether anything can match it: in a JSON string not all can be.
class PatternParser {
 public:
  PatternParser(std::string_view text, std::string_view where, PatternUse use)
      : text_(text), where_(where), json_(use == PatternUse::kJsonString) {}

  Status Parse() {
    if (text_.starts_with("(?i)")) begin_ = at_ = 4;
    const bool possible = TRY(Alternatives());
    if (at_ < text_.size()) return Refuse(at_, "this ) closes no parenthesis; write \\)");
    if (possible) return {};
    return InvalidArgument(
        "{} matches no string that JSON writes as it stands: it demands a control character, a "
        "quote or a backslash; leave these out",
        where_);
  }

 private:
  // Characters are counted from 1.
  Status Refuse(size_t at, std::string_view what) const {
    const auto before =
        std::ranges::count_if(text_.substr(0, at), [](char c) { return (c & 0xc0) != 0x80; });
    return InvalidArgument("{}, character {}: {}", where_, before + 1, what);
  }

  bool Next(std::string_view what) const { return text_.substr(at_).starts_with(what); }

  Result<bool> Alternatives() {
    bool any = false;
    for (;;) {
      any = TRY(Sequence()) || any;
      if (!Next("|")) return any;
      ++at_;
    }
  }

  Result<bool> Sequence() {
    bool all = true;
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      all = TRY(Repeated()) && all;
    }
    return all;
  }

  Result<bool> Repeated() {
    const size_t begin = at_;
    const bool anchor = Next("^") || Next("$");
    bool possible = TRY(Atom());
    const size_t end = at_;
    if (TRY(TakeCount(&possible)) && anchor) {
      return Refuse(end, fmt::format("{} cannot be repeated", text_[begin]));
    }
    return possible;
  }

  // A repetition, if there is one: then nothing may be as much as matches.
  Result<bool> TakeCount(bool* possible) {
    if (at_ == text_.size() ||
        std::string_view("*+?{").find(text_[at_]) == std::string_view::npos) {
      return false;
    }
    if (text_[at_] == '{') {
      if (TRY(TakeBraces()) == 0) *possible = true;
    } else {
      *possible = *possible || text_[at_] != '+';
      ++at_;
    }
    if (Next("?")) ++at_;  // a lazy one, which matches the same
    if (at_ < text_.size() && std::string_view("*+?{").find(text_[at_]) != std::string_view::npos) {
      return Refuse(at_, "it repeats a repetition; put that into parentheses");
    }
    return true;
  }

  // {2}, {2,} or {2,3}; the least.
  Result<int> TakeBraces() {
    const size_t begin = at_, end = text_.find('}', at_);
    const std::string_view counts = text_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = std::min(counts.find(','), counts.size());
    const bool two = comma + 1 < counts.size();
    int least = 0, most = 0;
    const bool good = end != text_.npos && IsCount(counts.substr(0, comma), &least) &&
                      (!two || IsCount(counts.substr(comma + 1), &most));
    if (!good) return Refuse(begin, "a count is written {2}, {2,} or {2,3}, and a brace \\{");
    if (two && most < least) return Refuse(begin, "the lower count is above the upper one");
    at_ = end + 1;
    return least;
  }

  Result<bool> Atom() {
    const size_t begin = at_;
    const char c = text_[at_];
    if (c == '[') return Class();
    if (c == '(') return Group();
    if (c == '\\') {
      const Ranges ranges = TRY(Escape(/*in_class=*/false));
      return !json_ || AnyIsPlain(ranges);
    }
    if (std::string_view("*+?{").find(c) != std::string_view::npos) {
      return Refuse(begin,
                    fmt::format("{0} has nothing to repeat; a character is written \\{0}", c));
    }
    if (c == '^' && at_ != begin_) {
      return Refuse(begin,
                    "^ may stand at the beginning alone, which every pattern has; leave it out");
    }
    if (c == '$' && at_ + 1 != text_.size()) {
      return Refuse(begin, "$ may stand at the end alone, which every pattern has; leave it out");
    }
    const uint32_t character = Take(text_, &at_);
    return !json_ || c == '.' || AnyIsPlain({{character, character}});
  }

  Result<bool> Group() {
    const size_t begin = at_;
    for (const std::string_view look : {"(?=", "(?!", "(?<=", "(?<!"}) {
      if (Next(look)) {
        return Refuse(begin, fmt::format("answers cannot be held to {}...), which looks around; "
                                         "leave it out",
                                         look));
      }
    }
    if (Next("(?<") || Next("(?P<")) {
      const size_t name = at_ = text_.find('<', at_) + 1;
      while (at_ < text_.size() && IsWord(text_[at_])) ++at_;
      if (at_ == name || !Next(">"))
        return Refuse(begin, "a name of a group is written (?<name>...)");
      ++at_;
    } else if (Next("(?:")) {
      at_ += 3;
    } else if (Next("(?")) {
      return Refuse(begin, "of flags there is (?i) alone, at the beginning");
    } else {
      ++at_;
    }
    const bool possible = TRY(Alternatives());
    if (!Next(")")) return Refuse(begin, "this parenthesis is not closed");
    ++at_;
    return possible;
  }

  Result<bool> Class() {
    const size_t begin = at_++;
    const bool negated = Next("^");
    at_ += negated;
    if (Next("]")) return Refuse(begin, "a class without characters; a bracket is written \\]");
    Ranges ranges;
    while (!Next("]")) {
      const size_t unit = at_;
      Ranges one = TRY(ClassUnit(begin));
      if (Next("-") && at_ + 1 < text_.size() && text_[at_ + 1] != ']' && IsOne(one)) {
        ++at_;
        const Ranges last = TRY(ClassUnit(begin));
        if (!IsOne(last) || last[0].last < one[0].first) {
          return Refuse(unit, "a range goes from a character to a later one; - is written \\-");
        }
        one[0].last = last[0].last;
      }
      ranges.insert(ranges.end(), one.begin(), one.end());
    }
    ++at_;
    return !json_ || AnyIsPlain(negated ? Complement(ranges) : ranges);
  }

  static bool IsOne(const Ranges& ranges) {
    return ranges.size() == 1 && ranges[0].first == ranges[0].last;
  }

  Result<Ranges> ClassUnit(size_t begin) {
    if (at_ == text_.size()) return Refuse(begin, "this class is not closed; [ is written \\[");
    if (text_[at_] == '\\') return Escape(/*in_class=*/true);
    const uint32_t character = Take(text_, &at_);
    return Ranges{{character, character}};
  }

  Result<Ranges> Escape(bool in_class) {
    const size_t begin = at_++;
    if (at_ == text_.size()) return Refuse(begin, "nothing is behind the backslash");
    const char c = text_[at_];
    const auto of = [&](Ranges ranges) -> Result<Ranges> {
      ++at_;
      return c >= 'A' && c <= 'Z' ? Complement(std::move(ranges)) : ranges;
    };
    if (c == 'd' || c == 'D') return of({{'0', '9'}});
    if (c == 'w' || c == 'W') return of({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
    if (c == 's' || c == 'S') return of({{'\t', '\r'}, {' ', ' '}});
    if (c == 'x' || c == 'u') return Hexadecimal();
    if (c == 'c') {
      const char letter = at_ + 1 < text_.size() ? text_[at_ + 1] : ' ';
      if (!IsWord(letter) || letter <= '9' || letter == '_')
        return Refuse(begin, "\\c is followed by a letter");
      at_ += 2;
      return Ranges{{letter & 31U, letter & 31U}};
    }
    if (std::string_view(in_class ? "ntrfv0b" : "ntrfv0").find(c) != std::string_view::npos) {
      ++at_;
      return Ranges{{0, 0}};  // a control character
    }
    if (IsWord(c) && c != '_') {
      const std::string_view what = (c >= '1' && c <= '9') || c == 'k' ? "refers back"
                                    : c == 'p' || c == 'P'             ? "names a class of Unicode"
                                    : c == 'b' || c == 'B'             ? "looks around"
                                                                       : "is not known";
      return Refuse(begin, fmt::format("answers cannot be held to \\{}, which {}", c, what));
    }
    const uint32_t character = Take(text_, &at_);
    return Ranges{{character, character}};
  }

  // \x41, \u0041 or \u{41}.
  Result<Ranges> Hexadecimal() {
    const size_t begin = at_ - 1;
    const bool braces = text_.substr(at_).starts_with("u{");
    const size_t from = at_ + (braces ? 2 : 1);
    size_t end = from;
    const size_t most = braces ? 6 : text_[at_] == 'x' ? 2 : 4;
    while (end < text_.size() && end < from + most && IsHex(text_[end])) ++end;
    uint32_t character = 0;
    std::from_chars(text_.data() + from, text_.data() + end, character, 16);
    const bool whole =
        braces ? end > from && text_.substr(end).starts_with('}') : end == from + most;
    if (!whole || character > kLastCharacter) {
      return Refuse(begin, "a character is written \\x41, \\u0041 or \\u{41}");
    }
    if (character >= kFirstSurrogate && character <= kLastSurrogate) {
      return Refuse(begin, fmt::format("U+{:04X} is half of a character, which no answer has; "
                                       "write the character itself, as \\u{{1f600}}",
                                       character));
    }
    at_ = end + braces;
    return Ranges{{character, character}};
  }

  const std::string_view text_, where_;
  const bool json_;
  size_t at_ = 0, begin_ = 0;
};

// Of \s, \S, \w and \W what both ECMA's and Python's match, as ranges of a class; of \W what is no
// letter in any script: ASCII, punctuation of texts.
constexpr std::string_view kSpace = R"(\t-\r )";
constexpr std::string_view kNoSpace =
    R"(\x00-\x08\x0e-\x1b!-\x84\x86-\x9f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e)"
    R"(\u2030-\u205e\u2060-\u2fff\u3001-\ufefe\uff00-\u{10ffff})";
constexpr std::string_view kWord = "0-9A-Z_a-z";
constexpr std::string_view kNoWord = R"(\x00-/:-@\[-\^`{-\x7f\u2010-\u2027\u3001-\u3003)";
// And what either matches, for classes that leave it out.
constexpr std::string_view kAnySpace =
    R"(\t-\r\x1c- \x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff)";
constexpr std::string_view kAnyNoSpace =
    R"(\x00-\x08\x0e-\x1f!-\x9f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e)"
    R"(\u2030-\u205e\u2060-\u2fff\u3001-\u{10ffff})";
constexpr std::string_view kAnyWord = R"(0-9A-Z_a-z\x80-\u200f\u2028-\u3000\u3004-\u{10ffff})";
constexpr std::string_view kAnyNoWord = R"(\x00-/:-@\[-\^`{-\u{10ffff})";

// [\s\S] and its like: a shorthand and its opposite, which as ranges would leave some out.
bool IsAnyCharacter(std::string_view text) {
  constexpr std::string_view kAll[] = {R"([\s\S])", R"([\S\s])", R"([\w\W])",
                                       R"([\W\w])", R"([\d\D])", R"([\D\d])"};
  return std::ranges::find(kAll, text) != std::end(kAll);
}

std::string_view RangesOf(char shorthand, bool left_out) {
  switch (shorthand) {
    case 's': return left_out ? kAnySpace : kSpace;
    case 'S': return left_out ? kAnyNoSpace : kNoSpace;
    case 'w': return left_out ? kAnyWord : kWord;
    default: return left_out ? kAnyNoWord : kNoWord;
  }
}

}  // namespace

Status CheckPatternSyntax(std::string_view pattern, std::string_view where, PatternUse use) {
  return PatternParser(pattern, where, use).Parse();
}

std::string AsciiPattern(std::string_view pattern) {
  std::string ascii;
  bool in_class = false, left_out = false;
  for (size_t at = 0; at < pattern.size();) {
    const char c = pattern[at];
    const char next = at + 1 < pattern.size() ? pattern[at + 1] : ' ';
    const char character = c == '\\' ? next : c;
    if (!in_class && IsAnyCharacter(pattern.substr(at, 6))) {
      ascii += R"([\x00-\u{10ffff}])";
      at += 6;
    } else if (c == '\\' && std::string_view("sSwW").find(next) != std::string_view::npos) {
      const std::string_view ranges = RangesOf(next, left_out);
      ascii += in_class ? std::string(ranges) : fmt::format("[{}]", ranges);
      at += 2;
      if (in_class && pattern.substr(at).starts_with('-')) ascii += '\\';
    } else if (character < ' ' || character > '~') {  // signed: U+0080 and further too
      at += c == '\\';
      ascii += fmt::format("\\u{{{:x}}}", Take(pattern, &at));
    } else if (c == '\\') {
      ascii += pattern.substr(at, 2);
      at += 2;
    } else {
      if (c == ']' && !in_class) ascii += '\\';
      if (c == '[' && !in_class) left_out = next == '^';
      in_class = c == '[' || (in_class && c != ']');
      left_out = left_out && in_class;
      ascii += c;
      ++at;
    }
  }
  return ascii;
}

}  // namespace fathom
