#include "server/completion_generation.h"

#include <algorithm>
#include <utility>

#include "server/json_parts.h"

namespace fathom {

namespace json = boost::json;

CompletionGeneration::CompletionGeneration(GenerationSetup setup)
    : Generation(std::move(setup), "text_completion") {
  for (size_t i = 0; i < num_choices(); ++i) {
    completions_.push_back({.logprobs = LegacyLogprobs(names())});
  }
}

template <class Add>
void CompletionGeneration::Prepare(Piece* piece, Add add) {
  const GenerationPrompt& asked = prompt(piece->choice);
  if (piece->first && asked.echo) {
    piece->text.insert(0, asked.text);
    for (size_t i = 0; wants_logprobs() && i < asked.tokens.size(); ++i) {
      // The first token follows nothing, so that it has no probability.
      const bool known = i > 0 && i <= piece->prompt_logprobs.size();
      if (known) {  // prompt_logprobs may have asked for more
        auto& top = piece->prompt_logprobs[i - 1].top;
        top.resize(std::min(top.size(), static_cast<size_t>(setup().params.sampling.logprobs)));
      }
      add(asked.tokens[i], known ? &piece->prompt_logprobs[i - 1] : nullptr);
    }
  }
  if (!wants_logprobs()) return;
  for (GeneratedToken& token : piece->tokens) {
    add(token.id, token.logprobs ? &*token.logprobs : nullptr);
  }
}

void CompletionGeneration::Stream(Piece piece, std::string* events) {
  Prepare(&piece, [&](TokenId id, const TokenLogprobs* logprobs) {
    completions_[piece.choice].logprobs.Add(id, logprobs);
  });
  // Without text too: clients count events, and time the first.
  const bool logprobs = wants_logprobs() && (!piece.tokens.empty() || piece.first);
  json::object choice = {{"text", piece.text}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (logprobs) choice["logprobs"] = completions_[piece.choice].logprobs.Take();
  if (piece.finish) {
    choice["finish_reason"] = FinishName(*piece.finish);
    choice["stop_reason"] = std::move(piece.stop_reason);
  }
  if (piece.first && returns_token_ids()) {
    choice["prompt_token_ids"] = TokenIds(prompt(piece.choice).tokens);
  }
  *events += ChoiceChunk(piece.choice, std::move(choice));
}

void CompletionGeneration::Collect(Piece piece) {
  Completion& completion = completions_[piece.choice];
  const int32_t top = setup().params.prompt_logprobs;
  if (piece.first && top >= 0) {
    completion.prompt_logprobs =
        PromptLogprobs(*setup().tokenizer, prompt(piece.choice).tokens, piece.prompt_logprobs, top);
  }
  Prepare(&piece, [&](TokenId id, TokenLogprobs* logprobs) {
    completion.tokens.emplace_back(id,
                                   logprobs ? std::optional(std::move(*logprobs)) : std::nullopt);
  });
  completion.text += piece.text;
  if (!piece.finish) return;
  completion.finish_reason = FinishName(*piece.finish);
  completion.stop_reason = std::move(piece.stop_reason);
}

json::object CompletionGeneration::Choice(size_t choice) {
  Completion& completion = completions_[choice];
  return {{"text", completion.text},
          {"finish_reason", completion.finish_reason},
          {"stop_reason", std::move(completion.stop_reason)},
          {"prompt_logprobs", std::move(completion.prompt_logprobs)},
          {"prompt_token_ids", returns_token_ids() ? json::value(TokenIds(prompt(choice).tokens))
                                                   : json::value(nullptr)}};
}

std::string CompletionGeneration::Logprobs(size_t choice) {
  if (!wants_logprobs()) return "null";
  Completion& completion = completions_[choice];
  JsonParts parts;
  parts.Add(completion.logprobs.Take());
  for (const auto& [id, logprobs] : completion.tokens) {
    completion.logprobs.Add(id, logprobs ? &*logprobs : nullptr);
    parts.Add(completion.logprobs.Take());
  }
  return parts.Text();
}

}  // namespace fathom
