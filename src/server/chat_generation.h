// Answers of /v1/chat/completions.
#pragma once

#include <span>
#include <vector>

#include "server/generation.h"
#include "server/reasoning_meter.h"

namespace fathom {

struct ChatOutputOptions {
  OutputParserOptions parser;
  bool parallel_tool_calls = true;  // otherwise only the first call is shown
  bool include_reasoning = true;
  std::string echoed;  // the answer begins with it
};

// Whether an answer ended in calls, none of them cut by its length or by `stop_reason`, what the
// request has named in `stop`. `held`: to a form, which that cuts wherever it comes.
bool EndedInCalls(const OutputParser& parser, FinishReason finish,
                  const boost::json::value& stop_reason, bool held);

class ChatGeneration final : public Generation {
 public:
  ChatGeneration(GenerationSetup setup, const ChatOutputOptions& options);

 private:
  struct Message {
    OutputParser parser;
    ReasoningMeter meter;
    ChatDelta whole;  // of an answer that is not streamed, without what it echoes
    std::vector<GeneratedToken> tokens;
    const char* finish_reason = nullptr;
    boost::json::value stop_reason;
  };

  ChatDelta Parse(Piece* piece);
  Status WriteLogprobs(std::span<const GeneratedToken> tokens, const WorkLimits& limits,
                       std::string* text) const;
  const char* FinishReasonOf(const Piece& piece) const;
  void Stream(Piece piece, std::string* events, const WorkLimits& limits) override;
  void Collect(Piece piece) override;
  boost::json::object Choice(size_t choice) override;
  Status AddLogprobs(size_t choice, const WorkLimits& limits, std::string* body) override;
  Status AddTail(const WorkLimits& limits, std::string* body) override;
  size_t FirstBytes(size_t choice) const override;
  size_t PromptBytes(size_t choice) const override;
  std::optional<int64_t> ReasoningTokens() const override;

  const ChatOutputOptions options_;
  std::vector<TokenLogprobs> prompt_logprobs_;
  std::vector<Message> messages_;  // by choice
};

}  // namespace fathom
