#include "engine_answers.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace fathom {

GenerateRequest EngineAnswers::Greedy(std::vector<TokenId> prompt, int32_t max_tokens) const {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

Status EngineAnswers::Run(GenerateRequest request,
                          const std::function<bool(RequestOutput&)>& take) {
  std::mutex mutex;
  std::condition_variable changed;
  bool awake = false;  // guarded by mutex
  RequestStream stream(outputs_, engine_, [&] {
    {
      std::lock_guard lock(mutex);
      awake = true;
    }
    changed.notify_one();
  });
  std::vector<GenerateRequest> requests;
  requests.push_back(std::move(request));
  TRY(stream.Submit(std::move(requests)));
  for (;;) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return awake; });
      awake = false;
    }
    while (auto next = stream.Next()) {
      RequestOutput& output = next->second;
      if (output.finish == FinishReason::kError) return output.error;
      if (!take(output) || output.finish) return {};
    }
  }
}

Result<Answer> EngineAnswers::Follow(const std::vector<TokenId>& prompt,
                                     std::span<const GeneratedToken> theirs) {
  Answer answer;
  std::vector<TokenId> known = prompt;
  bool first = true;
  while (first || answer.tokens.size() < theirs.size()) {
    const size_t before = answer.tokens.size(), left = theirs.size() - before;
    GenerateRequest request = Greedy(known, static_cast<int32_t>(std::max<size_t>(left, 1)));
    request.sampling.logprobs = top_;
    if (first) request.prompt_logprobs = top_;
    first = false;
    TRY(Run(std::move(request), [&](RequestOutput& output) {
      if (!output.prompt_logprobs.empty()) answer.prompt = std::move(output.prompt_logprobs);
      for (GeneratedToken& token : output.tokens) {
        if (answer.tokens.size() == theirs.size()) return false;
        const GeneratedToken& their = theirs[answer.tokens.size()];
        const bool equal = token.id == their.id;
        answer.tokens.push_back(std::move(token));
        known.push_back(their.id);
        if (!equal) return false;
      }
      return true;
    }));
    if (left > 0 && answer.tokens.size() == before) {
      return Internal("the engine ended its answer without a token");
    }
  }
  return answer;
}

Result<std::vector<TokenId>> EngineAnswers::Structured(const std::vector<TokenId>& prompt,
                                                       std::shared_ptr<const Grammar> grammar,
                                                       const std::vector<TokenId>& stop_tokens,
                                                       int32_t max_tokens) {
  GenerateRequest request = Greedy(prompt, max_tokens);
  request.grammar = std::move(grammar);
  request.stop_tokens = stop_tokens;
  std::vector<TokenId> tokens;
  TRY(Run(std::move(request), [&](RequestOutput& output) {
    for (const GeneratedToken& token : output.tokens) tokens.push_back(token.id);
    return true;
  }));
  return tokens;
}

}  // namespace fathom
