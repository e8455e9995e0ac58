#include "tokenizer/tokenizer.h"

#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/utf8.h"

namespace fathom {

namespace {

constexpr size_t kCheckedBytes = size_t{16} << 10;  // between two looks at the limits

// What Bpe::Scratch needs for the longest word so far. Few texts have words of more than some
// letters, so it is no part of what a request may take by its size.
struct ScratchClaim {
  ~ScratchClaim() {
    if (limits.memory != nullptr) limits.memory->ShrinkBeside(claimed);
  }
  Status For(size_t word_bytes) {
    constexpr size_t kBytesPerByte = 40, kMostBytes = size_t{24} << 20;
    const size_t wanted = kBytesPerByte * word_bytes;
    if (limits.memory == nullptr || wanted <= claimed) return {};
    if (wanted > kMostBytes) {
      return ResourceExhausted("a word has {} bytes, more than the {} that are tokenised: break it",
                               word_bytes, kMostBytes / kBytesPerByte);
    }
    TRY(limits.memory->GrowBeside(wanted - claimed));
    claimed = wanted;
    return {};
  }
  const WorkLimits& limits;
  size_t claimed = 0;
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
                                                   const WorkLimits& limits) const {
  if (text.size() > kMaxTextBytes) {
    return ResourceExhausted("the text has {} bytes, more than the {} that are tokenised at once",
                             text.size(), kMaxTextBytes);
  }
  const size_t valid = ValidUtf8Prefix(text);
  if (valid != text.size()) {
    return InvalidArgument("the text is not UTF-8: byte {} (0x{:02X}) begins no character", valid,
                           static_cast<uint8_t>(text[valid]));
  }
  std::vector<TokenId> ids;
  size_t since_check = 0;
  ScratchClaim claim{limits};
  PreTokenizer::Words words(parts_->pre_tokenizer, limits);
  Bpe::Scratch scratch;
  const auto encode = [&](const AddedTokens::Piece& piece) -> Status {
    if (piece.id) {
      ids.push_back(*piece.id);
      return {};
    }
    words.Begin(piece.text);
    for (std::string_view word; words.Next(&word);) {
      since_check += word.size();
      if (since_check >= kCheckedBytes) {
        since_check = 0;
        TRY(limits.Check());
        TRY(claim.For(word.size()));
      }
      const auto more = parts_->bpe->Encode(word, /*added_allowed=*/piece.trusted, &scratch);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    return words.status();
  };
  TRY(parts_->added_tokens->Split(text, trust, encode));
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, bool add_special_tokens,
                                               const WorkLimits& limits) const {
  std::vector<TokenId> ids = TRY(EncodeText(text, nullptr, limits));
  if (add_special_tokens) {
    ids.insert(ids.begin(), parts_->prefix.begin(), parts_->prefix.end());
    ids.insert(ids.end(), parts_->suffix.begin(), parts_->suffix.end());
  }
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::Encode(const SpannedText& text,
                                               const WorkLimits& limits) const {
  return EncodeText(text.text(), &text.spans(), limits);
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
