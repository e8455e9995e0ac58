// Answers of /v1/completions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "server/generation.h"

namespace fathom {

class CompletionGeneration final : public Generation {
 public:
  explicit CompletionGeneration(GenerationSetup setup);

 private:
  struct Completion {
    LegacyLogprobs logprobs;
    // Of an answer that is not streamed.
    std::string text;
    std::vector<GeneratedToken> tokens;  // if their log-probabilities are shown
    const char* finish_reason = nullptr;
    boost::json::value stop_reason;
    std::vector<TokenLogprobs> of_prompt;  // in its first choice
    size_t tail_at = 0, tail_bytes = 0;    // likewise, in the answer
  };

  bool wants_logprobs() const { return setup().params.sampling.logprobs >= 0; }
  void Stream(Piece piece, std::string* events, const WorkLimits& limits) override;
  void Collect(Piece piece) override;
  boost::json::object Choice(size_t choice) override;
  Status AddLogprobs(size_t choice, const WorkLimits& limits, std::string* body) override;
  // Of its prompt, if it is `echoed`, and of what was generated.
  Status AddTokens(size_t choice, bool echoed, std::span<const TokenLogprobs> of_prompt,
                   std::span<const GeneratedToken> tokens, const WorkLimits& limits);
  size_t FirstBytes(size_t choice) const override;
  size_t PromptBytes(size_t choice) const override;
  Status AddChoiceTail(size_t choice, const WorkLimits& limits, std::string* body) override;

  std::vector<Completion> completions_;  // by choice
};

}  // namespace fathom
