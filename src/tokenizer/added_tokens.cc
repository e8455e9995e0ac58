#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

std::string_view FirstCharacter(std::string_view text) {
  return text.empty() ? text : text.substr(0, NextUtf8Unit(text).size);
}

std::string_view LastCharacter(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0 && (static_cast<uint8_t>(text[--begin]) & 0xC0) == 0x80) {
  }
  return text.substr(begin);
}

// The Unicode property White_Space.
bool IsWhiteSpace(std::string_view character) {
  const char32_t c = CodePoint(character);
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsWordCharacter(std::string_view character) {
  static const Regex kWord = Regex::Compile("[\\w\\u200c\\u200d]").value();
  Regex::Search search(kWord);
  search.Begin(character);
  Regex::Match match;
  return search.Next(&match);  // one character cannot reach a match limit
}

bool StandsAlone(std::string_view before, std::string_view after) {
  return (before.empty() || !IsWordCharacter(LastCharacter(before))) &&
         (after.empty() || !IsWordCharacter(FirstCharacter(after)));
}

size_t WhiteSpaceAtEnd(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const std::string_view last = LastCharacter(text.substr(0, end));
    if (!IsWhiteSpace(last)) break;
    end -= last.size();
  }
  return text.size() - end;
}

size_t WhiteSpaceAtStart(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const std::string_view first = FirstCharacter(text.substr(at));
    if (!IsWhiteSpace(first)) break;
    at += first.size();
  }
  return at;
}

struct Range {
  size_t begin, end;
};

// The trusted parts of `piece`, which lies in `whole`, as offsets into `piece`.
std::vector<Range> TrustedRanges(std::string_view piece, std::string_view whole,
                                 const std::vector<SpannedText::Span>* trust) {
  if (trust == nullptr) return {{0, piece.size()}};
  const size_t offset = piece.data() - whole.data();
  std::vector<Range> ranges;
  auto span = std::ranges::upper_bound(*trust, offset, {}, &SpannedText::Span::end);
  for (size_t at = offset; span != trust->end() && at < offset + piece.size(); ++span) {
    const size_t end = std::min(span->end, offset + piece.size());
    if (span->trusted) ranges.push_back({at - offset, end - offset});
    at = end;
  }
  return ranges;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) {
  const auto normalized = std::partition(tokens.begin(), tokens.end(),
                                         [](const AddedToken& token) { return !token.normalized; });
  normalized_ = MakePass({normalized, tokens.end()});
  raw_ = MakePass({tokens.begin(), normalized});
}

AddedTokens::Pass AddedTokens::MakePass(std::vector<AddedToken> tokens) {
  Pass pass;
  std::ranges::sort(tokens, {}, &AddedToken::content);
  size_t at = 0;
  for (int byte = 0; byte <= 256; ++byte) {
    while (at < tokens.size() && static_cast<uint8_t>(tokens[at].content[0]) < byte) ++at;
    pass.first[byte] = static_cast<int32_t>(at);
  }
  pass.tokens = std::move(tokens);
  return pass;
}

// The longest token that `text` begins with. The tokens that share a prefix are neighbours; each
// byte narrows them down.
const AddedToken* AddedTokens::Pass::LongestAt(std::string_view text) const {
  const auto byte = static_cast<uint8_t>(text[0]);
  auto low = tokens.begin() + first[byte], high = tokens.begin() + first[byte + 1];
  const AddedToken* longest = nullptr;
  for (size_t depth = 1; low != high; ++depth) {
    if (low->content.size() == depth) longest = &*low++;
    if (depth == text.size()) break;
    const auto byte_at_depth = [depth](const AddedToken& token) {
      return static_cast<uint8_t>(token.content[depth]);
    };
    const auto wanted = static_cast<uint8_t>(text[depth]);
    low = std::ranges::lower_bound(low, high, wanted, {}, byte_at_depth);
    high = std::ranges::upper_bound(low, high, wanted, {}, byte_at_depth);
  }
  return longest;
}

Status AddedTokens::SplitPiece(const Pass& pass, std::string_view text, std::string_view whole,
                               const std::vector<SpannedText::Span>* trust, const Take& take) {
  size_t done = 0;
  for (const Range& range : TrustedRanges(text, whole, trust)) {
    for (size_t at = range.begin; at < range.end;) {
      const AddedToken* token = pass.LongestAt(text.substr(at, range.end - at));
      if (token == nullptr) {
        ++at;
        continue;
      }
      size_t begin = at, end = at + token->content.size();
      at = end;
      if (token->single_word && !StandsAlone(text.substr(0, begin), text.substr(end))) continue;
      // What an earlier token took along stays taken.
      if (token->lstrip) {
        if (done < begin) begin -= WhiteSpaceAtEnd(text.substr(done, begin - done));
        begin = std::max(begin, done);
      }
      if (token->rstrip) {
        end = std::max(end, done);
        end += WhiteSpaceAtStart(text.substr(end));
      }
      if (begin >= end) continue;
      if (done < begin) TRY(take({text.substr(done, begin - done), {}}));
      TRY(take({text.substr(begin, end - begin), token->id}));
      done = end;
    }
  }
  return done < text.size() ? take({text.substr(done), {}}) : Status();
}

Status AddedTokens::Split(std::string_view text, const std::vector<SpannedText::Span>* trust,
                          const Take& take) const {
  const auto take_with_trust = [&](Piece piece) {
    const std::vector<Range> trusted = TrustedRanges(piece.text, text, trust);
    piece.trusted = !trusted.empty() && trusted[0].end - trusted[0].begin == piece.text.size();
    return take(piece);
  };
  return SplitPiece(raw_, text, text, trust, [&](const Piece& piece) {
    return piece.id ? take_with_trust(piece)
                    : SplitPiece(normalized_, piece.text, text, trust, take_with_trust);
  });
}

}  // namespace fathom
