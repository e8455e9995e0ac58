#include "server/completion_generation.h"

#include <utility>

namespace fathom {

namespace json = boost::json;

CompletionGeneration::CompletionGeneration(GenerationSetup setup)
    : Generation(std::move(setup), "text_completion") {
  for (size_t i = 0; i < num_choices(); ++i) {
    completions_.push_back({.logprobs = LegacyLogprobs(*this->setup().tokenizer)});
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
  const bool logprobs = wants_logprobs() && (!piece.tokens.empty() || piece.first);
  if (piece.text.empty() && !logprobs && !piece.finish) return;
  json::object choice = {{"text", piece.text}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (logprobs) choice["logprobs"] = completions_[piece.choice].logprobs.Take();
  if (piece.finish) {
    choice["finish_reason"] = FinishName(*piece.finish);
    choice["stop_reason"] = std::move(piece.stop_reason);
  }
  *events += ChoiceChunk(piece.choice, std::move(choice));
}

void CompletionGeneration::Collect(Piece piece) {
  Completion& completion = completions_[piece.choice];
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
  // JSON takes many times what it is made of: one choice's at a time.
  for (const auto& [id, logprobs] : completion.tokens) {
    completion.logprobs.Add(id, logprobs ? &*logprobs : nullptr);
  }
  completion.tokens = {};
  return {{"text", completion.text},
          {"logprobs",
           wants_logprobs() ? json::value(completion.logprobs.Take()) : json::value(nullptr)},
          {"finish_reason", completion.finish_reason},
          {"stop_reason", std::move(completion.stop_reason)}};
}

}  // namespace fathom
