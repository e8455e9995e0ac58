// Answers of /v1/completions.
#pragma once

#include <vector>

#include "server/generation.h"

namespace fathom {

class CompletionGeneration final : public Generation {
 public:
  explicit CompletionGeneration(GenerationSetup setup);

 private:
  struct Completion {
    LegacyLogprobs logprobs;  // of a stream
    // Of an answer that is not streamed, with the prompt's if that is echoed.
    std::string text;
    std::vector<std::pair<TokenId, std::optional<TokenLogprobs>>> tokens;
    const char* finish_reason = nullptr;
    boost::json::value stop_reason, prompt_logprobs;
  };

  // Puts the prompt that is to be echoed before the first piece; calls `add` with each token.
  template <class Add>
  void Prepare(Piece* piece, Add add);
  bool wants_logprobs() const { return setup().params.sampling.logprobs >= 0; }
  void Stream(Piece piece, std::string* events) override;
  void Collect(Piece piece) override;
  boost::json::object Choice(size_t choice) override;
  std::string Logprobs(size_t choice) override;

  std::vector<Completion> completions_;  // by choice
};

}  // namespace fathom
