// What this engine answers: the likeliest token behind each that another generated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "reply.h"
#include "server/request_stream.h"

namespace fathom {

class EngineAnswers {
 public:
  // `top`: how many likeliest tokens to note. The engine has been started; both must outlive this.
  EngineAnswers(EngineClient& engine, EngineOutputs& outputs, int32_t top)
      : engine_(engine), outputs_(outputs), top_(top) {}

  // The prompt's log-probabilities, and a token for each of `theirs`, behind those before it. Where
  // a token is another than theirs, the request ends, and the next one goes on behind theirs.
  Result<Answer> Follow(const std::vector<TokenId>& prompt, std::span<const GeneratedToken> theirs);

  // Greedy, held to a grammar, until a stop token or `max_tokens`.
  Result<std::vector<TokenId>> Structured(const std::vector<TokenId>& prompt,
                                          std::shared_ptr<const Grammar> grammar,
                                          const std::vector<TokenId>& stop_tokens,
                                          int32_t max_tokens);

 private:
  // Calls `take` with each output, until it returns false or the request ends.
  Status Run(GenerateRequest request, const std::function<bool(RequestOutput&)>& take);
  GenerateRequest Greedy(std::vector<TokenId> prompt, int32_t max_tokens) const;

  EngineClient& engine_;
  EngineOutputs& outputs_;
  const int32_t top_;
};

}  // namespace fathom
