#include "chat/jinja/text.h"

#include <clocale>
#include <cwctype>

#include <algorithm>
#include <utility>

namespace fathom::jinja {
namespace {

locale_t UnicodeLocale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

char32_t Upper(char32_t c) {
  return towupper_l(static_cast<wint_t>(c), UnicodeLocale());
}
char32_t Lower(char32_t c) {
  return towlower_l(static_cast<wint_t>(c), UnicodeLocale());
}
bool IsUpper(char32_t c) {
  return iswupper_l(static_cast<wint_t>(c), UnicodeLocale()) != 0;
}
bool IsLower(char32_t c) {
  return iswlower_l(static_cast<wint_t>(c), UnicodeLocale()) != 0;
}
bool IsDigit(char32_t c) {
  return c >= '0' && c <= '9';
}
bool IsAlpha(char32_t c) {
  return !IsDigit(c) && iswalpha_l(static_cast<wint_t>(c), UnicodeLocale()) != 0;
}

// As str.splitlines().
bool IsLineEnd(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

struct Range {
  size_t begin, end;
};

// Runs of what is not whitespace.
std::vector<Range> Words(std::string_view text) {
  std::vector<Range> words;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (IsSpace(NextCodePoint(text, at))) {
      in_word = false;
    } else if (in_word) {
      words.back().end = at;
    } else {
      words.push_back({begin, at});
      in_word = true;
    }
  }
  return words;
}

std::vector<Range> SplitAtWhitespace(std::string_view text, size_t max, bool from_right) {
  std::vector<Range> pieces = Words(text);
  if (pieces.size() <= max) return pieces;
  if (from_right) {
    const size_t joined = pieces.size() - max;  // words of the piece that is not split
    pieces[0] = {0, pieces[joined - 1].end};
    pieces.erase(pieces.begin() + 1, pieces.begin() + static_cast<ptrdiff_t>(joined));
  } else {
    pieces[max].end = text.size();
    pieces.resize(max + 1);
  }
  return pieces;
}

std::vector<Range> SplitAt(std::string_view text, std::string_view separator, size_t max,
                           bool from_right) {
  std::vector<Range> pieces;
  if (from_right) {
    size_t end = text.size();
    while (pieces.size() < max && end >= separator.size()) {
      const size_t at = text.substr(0, end).rfind(separator);
      if (at == std::string_view::npos) break;
      pieces.push_back({at + separator.size(), end});
      end = at;
    }
    pieces.push_back({0, end});
    std::reverse(pieces.begin(), pieces.end());
  } else {
    size_t begin = 0;
    while (pieces.size() < max) {
      const size_t at = text.find(separator, begin);
      if (at == std::string_view::npos) break;
      pieces.push_back({begin, at});
      begin = at + separator.size();
    }
    pieces.push_back({begin, text.size()});
  }
  return pieces;
}

std::vector<SpannedText> CutAll(const SpannedText& text, const std::vector<Range>& ranges) {
  Cutter cutter(text);
  std::vector<SpannedText> pieces;
  pieces.reserve(ranges.size());
  for (const Range& range : ranges) pieces.push_back(cutter.Cut(range.begin, range.end));
  return pieces;
}

}  // namespace

SpannedText Cutter::Cut(size_t begin, size_t end) {
  const auto& spans = text_.spans();
  while (span_ < spans.size() && spans[span_].end <= begin) ++span_;
  SpannedText piece;
  for (size_t i = span_, at = begin; at < end; ++i) {
    const size_t to = std::min(spans[i].end, end);
    piece.Append(std::string_view(text_.text()).substr(at, to - at), spans[i].trusted);
    at = to;
  }
  return piece;
}

Status CheckCharacterTables() {
  if (UnicodeLocale() == locale_t{}) {
    return Unavailable("the C.UTF-8 locale is missing; install the package libc-bin");
  }
  return {};
}

char32_t NextCodePoint(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const size_t length = first < 0x80   ? 1
                        : first < 0xC2 ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  bool whole = length > 0 && at + length <= text.size();
  char32_t code_point = length <= 1 ? first : first & (0xFFu >> (length + 1));
  for (size_t i = 1; whole && i < length; ++i) {
    whole = (byte(at + i) & 0xC0) == 0x80;
    code_point = code_point << 6 | (byte(at + i) & 0x3F);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0, 0x800, 0x10000};  // anything less is overlong
  whole = whole && code_point >= kSmallest[length] && code_point <= 0x10FFFF &&
          (code_point < 0xD800 || code_point > 0xDFFF);
  at += whole ? length : 1;
  return whole ? code_point : 0xDC00u + first;  // as Python's surrogateescape
}

void AppendCodePoint(char32_t c, std::string& text) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c >= 0xDC80 && c <= 0xDCFF) return put(c - 0xDC00);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

size_t CodePoints(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) NextCodePoint(text, at);
  return count;
}

size_t ByteOffset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) NextCodePoint(text, at);
  return at;
}

bool IsSpace(char32_t c) {
  return (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::vector<SpannedText> Characters(const SpannedText& text) {
  Cutter cutter(text);
  std::vector<SpannedText> characters;
  for (size_t at = 0; at < text.text().size();) {
    const size_t begin = at;
    NextCodePoint(text.text(), at);
    characters.push_back(cutter.Cut(begin, at));
  }
  return characters;
}

SpannedText Reversed(const SpannedText& text) {
  const std::vector<SpannedText> characters = Characters(text);
  SpannedText reversed;
  for (auto c = characters.rbegin(); c != characters.rend(); ++c) reversed.Append(*c);
  return reversed;
}

SpannedText Strip(const SpannedText& text, Side side, std::optional<std::string_view> chars) {
  const std::string_view bytes = text.text();
  std::u32string set;
  for (size_t at = 0; chars && at < chars->size();) set += NextCodePoint(*chars, at);
  const auto strips = [&](char32_t c) {
    return chars ? set.find(c) != std::u32string::npos : IsSpace(c);
  };
  size_t begin = 0, end = 0;
  bool leading = side != Side::kRight;
  for (size_t at = 0; at < bytes.size();) {
    const bool stripped = strips(NextCodePoint(bytes, at));
    leading = leading && stripped;
    if (leading) begin = at;
    if (!stripped || side == Side::kLeft) end = at;
  }
  return begin < end ? text.Slice(begin, end) : SpannedText();
}

std::vector<SpannedText> Split(const SpannedText& text, std::optional<std::string_view> separator,
                               int64_t max, bool from_right) {
  const size_t limit = max < 0 ? text.text().size() + 1 : static_cast<size_t>(max);
  if (separator) return CutAll(text, SplitAt(text.text(), *separator, limit, from_right));
  return CutAll(text, SplitAtWhitespace(text.text(), limit, from_right));
}

std::vector<SpannedText> SplitLines(const SpannedText& text) {
  const std::string_view bytes = text.text();
  std::vector<Range> lines;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = at;
    if (!IsLineEnd(NextCodePoint(bytes, at))) continue;
    if (bytes[end] == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    lines.push_back({begin, end});
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back({begin, bytes.size()});
  return CutAll(text, lines);
}

size_t CountReplacements(std::string_view text, std::string_view from, int64_t max) {
  const size_t limit = max < 0 ? text.size() + 1 : static_cast<size_t>(max);
  if (from.empty()) return std::min(CodePoints(text) + 1, limit);
  size_t count = 0;
  for (size_t at = 0; count < limit; ++count) {
    at = text.find(from, at);
    if (at == std::string_view::npos) break;
    at += from.size();
  }
  return count;
}

SpannedText Replace(const SpannedText& text, std::string_view from, const SpannedText& to,
                    int64_t max) {
  const std::string_view bytes = text.text();
  const size_t count = CountReplacements(bytes, from, max);
  Cutter cutter(text);
  SpannedText result;
  size_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    if (from.empty()) {  // before each character, and at the end
      result.Append(to);
      size_t end = begin;
      if (begin < bytes.size()) NextCodePoint(bytes, end);
      result.Append(cutter.Cut(begin, end));
      begin = end;
    } else {
      const size_t at = bytes.find(from, begin);
      result.Append(cutter.Cut(begin, at));
      result.Append(to);
      begin = at + from.size();
    }
  }
  result.Append(cutter.Cut(begin, bytes.size()));
  return result;
}

SpannedText MapCase(const SpannedText& text, Case to) {
  constexpr std::u32string_view kWordStarters = U"-({[<";
  SpannedText result;
  bool start = true;  // of the text, or of a word
  size_t at = 0;
  std::string mapped;
  for (const SpannedText::Span& span : text.spans()) {
    mapped.clear();
    while (at < span.end) {
      const char32_t c = NextCodePoint(std::string_view(text.text()).substr(0, span.end), at);
      const bool upper = to == Case::kUpper || (to != Case::kLower && start);
      AppendCodePoint(upper ? Upper(c) : Lower(c), mapped);
      if (to == Case::kTitle) {
        start = Upper(c) == c && Lower(c) == c && !IsLower(c) && !IsUpper(c);
      } else if (to == Case::kTitleFilter) {
        start = IsSpace(c) || kWordStarters.find(c) != std::u32string_view::npos;
      } else {
        start = false;
      }
    }
    result.Append(mapped, span.trusted);
  }
  return result;
}

bool IsAll(std::string_view text, Class of) {
  bool cased = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCodePoint(text, at);
    switch (of) {
      case Class::kDigit:
        if (!IsDigit(c)) return false;
        break;
      case Class::kAlpha:
        if (!IsAlpha(c)) return false;
        break;
      case Class::kAlnum:
        if (!IsDigit(c) && !IsAlpha(c)) return false;
        break;
      case Class::kSpace:
        if (!IsSpace(c)) return false;
        break;
      case Class::kUpper:
        if (IsLower(c)) return false;
        cased = cased || IsUpper(c);
        break;
      case Class::kLower:
        if (IsUpper(c)) return false;
        cased = cased || IsLower(c);
        break;
    }
  }
  return of == Class::kUpper || of == Class::kLower ? cased : !text.empty();
}

}  // namespace fathom::jinja
