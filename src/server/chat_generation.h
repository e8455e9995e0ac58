// Answers of /v1/chat/completions.
#pragma once

#include <vector>

#include "server/generation.h"

namespace fathom {

struct ChatOutputOptions {
  OutputParserOptions parser;
  bool parallel_tool_calls = true;  // otherwise only the first call is shown
  bool include_reasoning = true;
};

class ChatGeneration final : public Generation {
 public:
  ChatGeneration(GenerationSetup setup, const ChatOutputOptions& options);

 private:
  struct Message {
    OutputParser parser;
    ChatDelta whole;  // of an answer that is not streamed
    std::vector<GeneratedToken> tokens;
    const char* finish_reason = nullptr;
    boost::json::value stop_reason;
  };

  ChatDelta Parse(const Piece& piece);
  const char* FinishReasonOf(const Piece& piece) const;
  void Stream(Piece piece, std::string* events) override;
  void Collect(Piece piece) override;
  boost::json::object Choice(size_t choice) override;

  const ChatOutputOptions options_;
  std::vector<Message> messages_;  // by choice
};

}  // namespace fathom
