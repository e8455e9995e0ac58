// Text to tokens and back: byte-level BPE as described by a Hugging Face folder's tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/spanned_text.h"
#include "base/status.h"
#include "base/work_limits.h"

namespace fathom {

struct TokenizerParts;  // what the files say, checked: tokenizer_parts.h

// The longest text that Encode takes; one word of this size needs about 128 MiB while it is
// encoded, and 32 for its tokens.
inline constexpr size_t kMaxTextBytes = size_t{8} << 20;

// Immutable after Load. THREAD: any.
class Tokenizer {
 public:
  // Reads tokenizer.json and, where present, tokenizer_config.json and chat_template.jinja of
  // `folder`. Whatever would make tokens differ from Hugging Face's is refused by name.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& folder);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // As Hugging Face's encode(text, add_special_tokens): added tokens written in the text count as
  // tokens. kInvalidArgument if `text` is not UTF-8; kResourceExhausted if it is longer than
  // kMaxTextBytes, has a word that is longer than its memory allows, or a pre-tokeniser pattern
  // reaches its match limit; those of `limits`, whose memory holds the tokens until they are there.
  Result<std::vector<TokenId>> Encode(std::string_view text, bool add_special_tokens,
                                      const WorkLimits& limits = {}) const;

  // Without the BOS/EOS rules. Added and special tokens come from trusted text only; the rest is
  // ordinary text, pre-tokenised across span borders as one string. Errors as above.
  Result<std::vector<TokenId>> Encode(const SpannedText& text, const WorkLimits& limits = {}) const;

  // Bytes that are no UTF-8 become U+FFFD, one per maximal invalid run; unknown ids are nothing.
  std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  // What `id` adds to a decoded text (for added tokens their content); "" for an unknown id.
  const std::string& TokenBytes(TokenId id) const;
  bool IsSpecial(TokenId id) const;
  // By exact spelling in the vocabulary ("Ġthe") or content of an added token.
  std::optional<TokenId> IdOf(std::string_view token) const;
  int32_t vocab_size() const;  // highest id + 1

  const std::string& bos_token() const;  // "" if none
  const std::string& eos_token() const;
  // Of tokenizer_config.json (of named ones, "default") or chat_template.jinja; "" if none.
  const std::string& chat_template() const;

 private:
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  Result<std::vector<TokenId>> EncodeText(std::string_view text,
                                          const std::vector<SpannedText::Span>* trust,
                                          bool add_special_tokens, const WorkLimits& limits) const;

  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace fathom
