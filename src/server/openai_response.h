// Pieces of the OpenAI API's answers as JSON.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "chat/output_parser.h"
#include "engine/messages.h"
#include "server/api_error.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts
  int64_t total_tokens() const { return prompt_tokens + completion_tokens; }
};
boost::json::object ToJson(const Usage& usage);

// One server-sent event.
std::string Event(const boost::json::value& data);
std::string ErrorEvent(const ApiError& error);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}: of a chat's tokens.
boost::json::value ChatLogprobs(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}: of a completion's tokens.
class LegacyLogprobs {
 public:
  explicit LegacyLogprobs(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // `logprobs` is null for the first token of a prompt.
  void Add(TokenId id, const TokenLogprobs* logprobs);
  boost::json::object Take();  // what was added since; offsets go on from there

 private:
  const Tokenizer& tokenizer_;
  boost::json::array tokens_, token_logprobs_, top_logprobs_, text_offset_;
  int64_t offset_ = 0;  // characters
};

// Adds `delta` to what `*whole` is so far.
void Append(ChatDelta delta, ChatDelta* whole);
// A delta, or what deltas add up to, as a message's fields; fields that are empty are left out.
boost::json::object ToJson(const ChatDelta& delta);

}  // namespace fathom
