#include "server/completion_generation.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

namespace fathom {

namespace json = boost::json;

namespace {

// Calls `add` with each token and what is known of it: of the prompt, if it is `echoed`, with
// `most` of the likeliest (prompt_logprobs may have asked for more), and of what was generated.
template <class Add>
void ForEachToken(const GenerationPrompt* echoed, std::span<const TokenLogprobs> prompt_logprobs,
                  int32_t most, std::span<const GeneratedToken> generated, Add add) {
  for (size_t i = 0; echoed != nullptr && i < echoed->tokens.size(); ++i) {
    // The first token follows nothing, so that it has no probability.
    if (i == 0 || i > prompt_logprobs.size()) {
      add(echoed->tokens[i], nullptr);
      continue;
    }
    TokenLogprobs shown = prompt_logprobs[i - 1];
    shown.top.resize(std::min(shown.top.size(), static_cast<size_t>(most)));
    add(echoed->tokens[i], &shown);
  }
  for (const GeneratedToken& token : generated) {
    add(token.id, token.logprobs ? &*token.logprobs : nullptr);
  }
}

}  // namespace

CompletionGeneration::CompletionGeneration(GenerationSetup setup)
    : Generation(std::move(setup), "text_completion") {
  for (size_t i = 0; i < num_choices(); ++i) {
    completions_.push_back({.logprobs = LegacyLogprobs(names())});
  }
}

void CompletionGeneration::Stream(Piece piece, std::string* events, const WorkLimits& limits) {
  const GenerationPrompt& asked = prompt(piece.choice);
  const bool echo = piece.first && asked.echo;
  if (echo) piece.text.insert(0, asked.text);
  std::string logprobs;
  // Without text too: clients count events, and time the first.
  if (wants_logprobs() && (!piece.tokens.empty() || piece.first)) {
    if (!AddTokens(piece.choice, echo, piece.prompt_logprobs, piece.tokens, limits).ok()) return;
    completions_[piece.choice].logprobs.Take(&logprobs);
  } else {
    logprobs = "null";
  }
  json::object choice = {{"text", piece.text}, {"finish_reason", nullptr}};
  if (piece.finish) {
    choice["finish_reason"] = FinishName(*piece.finish);
    choice["stop_reason"] = std::move(piece.stop_reason);
  }
  if (piece.first && returns_token_ids()) choice["prompt_token_ids"] = TokenIds(asked.tokens);
  AddNewTokenIds(piece.choice, &choice);
  *events += ChoiceChunk(piece.choice, std::move(choice), logprobs);
}

void CompletionGeneration::Collect(Piece piece) {
  if (piece.first && piece.choice == first_choice(piece.choice)) {
    completions_[piece.choice].of_prompt = std::move(piece.prompt_logprobs);
  }
  Completion& completion = completions_[piece.choice];
  completion.text += piece.text;
  if (wants_logprobs()) {
    std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(completion.tokens));
  }
  if (!piece.finish) return;
  completion.finish_reason = FinishName(*piece.finish);
  completion.stop_reason = std::move(piece.stop_reason);
}

json::object CompletionGeneration::Choice(size_t choice) {
  Completion& completion = completions_[choice];
  const GenerationPrompt& asked = prompt(choice);
  return {{"text", asked.echo ? asked.text + completion.text : completion.text},
          {"finish_reason", completion.finish_reason},
          {"stop_reason", std::move(completion.stop_reason)},
          {"prompt_token_ids",
           returns_token_ids() ? json::value(TokenIds(asked.tokens)) : json::value(nullptr)}};
}

size_t CompletionGeneration::FirstBytes(size_t choice) const {
  return (prompt(choice).echo ? prompt(choice).text.size() : 0) + TokenIdBytes(choice);
}

size_t CompletionGeneration::PromptBytes(size_t choice) const {
  const size_t tokens = prompt(choice).tokens.size();
  const int32_t echoed = prompt(choice).echo ? setup().params.sampling.logprobs : -1;
  return FirstBytes(choice) + LogprobsBytes(tokens, echoed) +
         LogprobsBytes(tokens, setup().params.prompt_logprobs);
}

Status CompletionGeneration::AddLogprobs(size_t choice, const WorkLimits& limits,
                                         std::string* body) {
  if (!wants_logprobs()) return Generation::AddLogprobs(choice, limits, body);
  Completion& completion = completions_[choice];
  const auto tokens = std::exchange(completion.tokens, {});
  TRY(AddTokens(choice, prompt(choice).echo, completions_[first_choice(choice)].of_prompt, tokens,
                limits));
  completion.logprobs.Take(body);
  return {};
}

Status CompletionGeneration::AddTokens(size_t choice, bool echoed,
                                       std::span<const TokenLogprobs> of_prompt,
                                       std::span<const GeneratedToken> tokens,
                                       const WorkLimits& limits) {
  Status status;
  ForEachToken(echoed ? &prompt(choice) : nullptr, of_prompt, setup().params.sampling.logprobs,
               tokens, [&](TokenId id, const TokenLogprobs* of_it) {
                 if (status.ok()) status = limits.Check();
                 if (status.ok()) completions_[choice].logprobs.Add(id, of_it);
               });
  return status;
}

Status CompletionGeneration::AddChoiceTail(size_t choice, const WorkLimits& limits,
                                           std::string* body) {
  Completion& first = completions_[first_choice(choice)];
  if (first.tail_bytes > 0) {
    body->append(*body, first.tail_at, first.tail_bytes);
    return {};
  }
  first.tail_at = body->size();
  body->append(R"(,"prompt_logprobs":)");
  TRY(AddPromptLogprobs(*setup().tokenizer, prompt(choice).tokens, first.of_prompt,
                        setup().params.prompt_logprobs, limits, body));
  first.tail_bytes = body->size() - first.tail_at;
  return {};
}

}  // namespace fathom
