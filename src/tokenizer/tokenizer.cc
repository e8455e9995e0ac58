#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/utf8.h"

namespace fathom {

namespace {

constexpr size_t kCheckedBytes = size_t{16} << 10;  // between two looks at the limits

// What Bpe::Scratch needs for the longest word so far. Few texts have words of more than some
// letters, so it is no part of what a request may take by its size.
struct ScratchClaim {
  Status For(size_t word_bytes) {
    constexpr size_t kMostBytes = size_t{24} << 20;
    const size_t wanted = Bpe::kScratchBytesPerByte * word_bytes;
    if (limits.memory == nullptr || wanted <= claim.held()) return {};
    const size_t most = std::min(kMostBytes, limits.memory->RoomBeside() + claim.held());
    if (wanted > most) {
      return ResourceExhausted("a word has {} bytes, more than the {} that are tokenised: break it",
                               word_bytes, most / Bpe::kScratchBytesPerByte);
    }
    return claim.Hold(wanted);
  }
  const WorkLimits& limits;
  BesideClaim claim{limits};
};

// The tokens of a text while they are found.
class CountedIds {
 public:
  // `text_bytes`: of all that will be encoded; `others`: tokens that do not come from it.
  CountedIds(const WorkLimits& limits, size_t text_bytes, size_t others)
      : limits_(limits), bytes_left_(text_bytes), others_(others) {}
  ~CountedIds() {
    if (limits_.memory != nullptr) limits_.memory->Shrink(ids_.capacity() * sizeof(TokenId));
  }
  CountedIds(const CountedIds&) = delete;

  // `bytes`: of the text, which gave `tokens`.
  Status Append(std::span<const TokenId> tokens, size_t bytes) {
    bytes_left_ -= std::min(bytes, bytes_left_);
    bytes_done_ += bytes;
    if (tokens.size() > ids_.capacity() - ids_.size()) TRY(Widen(ids_.size() + tokens.size()));
    ids_.insert(ids_.end(), tokens.begin(), tokens.end());
    return {};
  }
  // Counts no longer.
  std::vector<TokenId> Take() {
    std::vector<TokenId> ids = std::move(ids_);
    ids_ = {};
    if (limits_.memory != nullptr) limits_.memory->Shrink(ids.capacity() * sizeof(TokenId));
    return ids;
  }

 private:
  // Makes room for so many and those that the rest of the text will give, to judge by what came
  // before, at first one for four bytes: a vector that doubles would have three times its tokens
  // while it is copied. No byte gives more than one.
  Status Widen(size_t needed) {
    const double expected = ids_.capacity() == 0 ? 0.25
                                                 : 1.05 * static_cast<double>(needed) /
                                                       static_cast<double>(bytes_done_ + 1);
    const auto judged = static_cast<size_t>(expected * static_cast<double>(bytes_left_));
    const size_t room = needed + std::min(std::max(judged, needed / 4), bytes_left_) + others_;
    TRY(limits_.Take(room * sizeof(TokenId)));
    const size_t before = ids_.capacity();
    ids_.reserve(room);
    if (limits_.memory != nullptr) limits_.memory->Shrink(before * sizeof(TokenId));
    return {};
  }

  const WorkLimits& limits_;
  size_t bytes_left_, bytes_done_ = 0;
  const size_t others_;
  std::vector<TokenId> ids_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& folder) {
  auto parts = std::make_unique<TokenizerParts>();
  TRY(ReadTokenizerJson(folder + "/tokenizer.json", parts.get()));
  TRY(ReadTokenizerConfig(folder, parts.get()));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<TokenId>> Tokenizer::EncodeText(std::string_view text,
                                                   const std::vector<SpannedText::Span>* trust,
                                                   bool add_special_tokens,
                                                   const WorkLimits& limits) const {
  if (text.size() > kMaxTextBytes) {
    return ResourceExhausted("the text has {} bytes, more than the {} that are tokenised at once",
                             text.size(), kMaxTextBytes);
  }
  TRY(CheckUtf8(text));
  std::span<const TokenId> prefix, suffix;
  if (add_special_tokens) prefix = parts_->prefix, suffix = parts_->suffix;
  CountedIds ids(limits, text.size(), prefix.size() + suffix.size());
  size_t since_check = 0;
  ScratchClaim claim{limits};
  PreTokenizer::Words words(parts_->pre_tokenizer, limits);
  Bpe::Scratch scratch;
  const auto encode = [&](const AddedTokens::Piece& piece) -> Status {
    if (piece.id) return ids.Append({&*piece.id, 1}, piece.text.size());
    words.Begin(piece.text);
    for (std::string_view word; words.Next(&word);) {
      since_check += word.size();
      if (since_check >= kCheckedBytes) {
        since_check = 0;
        TRY(limits.Check());
        TRY(claim.For(word.size()));
      }
      TRY(ids.Append(parts_->bpe->Encode(word, /*added_allowed=*/piece.trusted, &scratch),
                     word.size()));
    }
    return words.status();
  };
  TRY(ids.Append(prefix, 0));
  TRY(parts_->added_tokens->Split(text, trust, encode));
  TRY(ids.Append(suffix, 0));
  return ids.Take();
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, bool add_special_tokens,
                                               const WorkLimits& limits) const {
  return EncodeText(text, nullptr, add_special_tokens, limits);
}

Result<std::vector<TokenId>> Tokenizer::Encode(const SpannedText& text,
                                               const WorkLimits& limits) const {
  return EncodeText(text.text(), &text.spans(), /*add_special_tokens=*/false, limits);
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!skip_special_tokens || !IsSpecial(id)) bytes += TokenBytes(id);
  }
  std::string text;
  if (AppendReplacingInvalid(bytes, &text) < bytes.size()) text += kReplacementCharacter;
  return text;
}

const std::string& Tokenizer::TokenBytes(TokenId id) const {
  return parts_->vocabulary[id].bytes;
}
bool Tokenizer::IsSpecial(TokenId id) const {
  return parts_->vocabulary[id].special;
}

std::optional<TokenId> Tokenizer::IdOf(std::string_view token) const {
  return parts_->vocabulary.Find(token);
}

int32_t Tokenizer::vocab_size() const {
  return parts_->vocabulary.size();
}
const std::string& Tokenizer::bos_token() const {
  return parts_->bos_token;
}
const std::string& Tokenizer::eos_token() const {
  return parts_->eos_token;
}
const std::string& Tokenizer::chat_template() const {
  return parts_->chat_template;
}

}  // namespace fathom
