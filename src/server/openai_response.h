// Pieces of the OpenAI API's answers as JSON.
#pragma once

#include <array>
#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/work_limits.h"
#include "chat/output_parser.h"
#include "engine/messages.h"
#include "server/api_error.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;                // of the prompts
  std::optional<int64_t> reasoning_tokens;  // of those generated; of a chat
  int64_t total_tokens() const { return prompt_tokens + completion_tokens; }
};
boost::json::object ToJson(const Usage& usage);

// One server-sent event.
std::string Event(const boost::json::value& data);
std::string ErrorEvent(const ApiError& error);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

// What log-probabilities call a token: its text, or "token_id:5".
struct TokenNames {
  const Tokenizer& tokenizer;
  bool as_ids = false;
  std::string Of(TokenId id) const;
};

// Log-probabilities are written token by token: JSON of all would take many times their text, which
// is appended to `*text`. An error, `limits`', leaves it cut.

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal"}: of a chat's tokens.
// `named`: not the likeliest are there, but logprob_token_ids; as in vLLM behind the token itself.
Status AddChatLogprobs(const TokenNames& names, std::span<const GeneratedToken> tokens, bool named,
                       const WorkLimits& limits, std::string* text);

// vLLM's prompt_logprobs: null for the first token, then {ID: {"logprob", "rank", "decoded_token"}}
// of the token that stands there and the `top` likeliest. The rank is null where it is not known.
// `top` below 0: null altogether.
Status AddPromptLogprobs(const Tokenizer& tokenizer, std::span<const TokenId> prompt,
                         std::span<const TokenLogprobs> logprobs, int32_t top,
                         const WorkLimits& limits, std::string* text);

// The shortest number that is this one as a float: 0.6, not 0.60000002384.
double AsWritten(float value);

boost::json::array TokenIds(std::span<const TokenId> ids);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}: of a completion's tokens.
class LegacyLogprobs {
 public:
  explicit LegacyLogprobs(const TokenNames& names) : names_(names) {}
  // `logprobs` is null for the first token of a prompt.
  void Add(TokenId id, const TokenLogprobs* logprobs);
  void Take(std::string* text);  // appends what was added since; offsets go on from there

 private:
  const TokenNames names_;
  std::array<std::string, 4> arrays_;  // without their brackets
  int64_t offset_ = 0;                 // characters of the text
};

// Adds `delta` to what `*whole` is so far.
void Append(ChatDelta delta, ChatDelta* whole);
// A delta, or what deltas add up to, as a message's fields; fields that are empty are left out.
boost::json::object ToJson(const ChatDelta& delta);

}  // namespace fathom
