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
    LegacyLogprobs logprobs;
    std::string text;  // of an answer that is not streamed
    const char* finish_reason = nullptr;
    boost::json::value stop_reason;
  };

  // Puts the prompt that is to be echoed before the first piece.
  void Prepare(Piece* piece);
  bool wants_logprobs() const { return setup().params.sampling.logprobs >= 0; }
  void Stream(Piece piece, std::string* events) override;
  void Collect(Piece piece) override;
  boost::json::object Choice(size_t choice) override;

  std::vector<Completion> completions_;  // by choice
};

}  // namespace fathom
