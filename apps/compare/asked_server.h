// The server that is compared with: how vLLM, SGLang and fathom are asked for tokens and their
// log-probabilities.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client.h"
#include "draft_counts.h"
#include "prompts.h"
#include "reply.h"

namespace fathom {

struct AskOptions {
  std::string url, api_key;
  std::string model;     // empty: the first that the server lists
  std::string protocol;  // "openai", "sglang", or "auto": by who the server says owns its model
  double timeout_s = 0;  // of a request
  int32_t top = 0;       // likeliest tokens to list
};

class AskedServer {
 public:
  // Asks for the models it has.
  static Result<AskedServer> Connect(const AskOptions& options);

  // Tokens of answers must be below. Before the first question.
  void SetVocabulary(int32_t size) { vocab_size_ = size; }

  // A greedy answer.
  Result<Answer> Greedy(std::span<const TokenId> prompt, int32_t max_tokens);
  // ... that keeps to a JSON schema. kUnimplemented if the server refuses.
  Result<Answer> Structured(std::span<const TokenId> prompt, const std::string& schema,
                            int32_t max_tokens);
  // How the server tokenises what the prompt was made of; nothing if that is tokens, or the server
  // has no /tokenize.
  Result<std::optional<std::vector<TokenId>>> Tokenize(const ComparePrompt& prompt);
  // Nothing if it counts none.
  std::optional<DraftCounts> Drafts() const { return FetchDraftCounts(target_); }

  const std::string& model() const { return model_; }
  const std::string& owner() const { return owner_; }  // "vllm", "sglang", "fathom"; "": unknown
  // Where the log-probabilities of prompts come from: a field's name; "" if there are none.
  std::string prompt_source() const;

 private:
  enum class PromptSource { kField, kEcho, kNone };

  AskedServer(const AskOptions& options, Target target)
      : options_(options), target_(std::move(target)) {}
  AskedPrompt Asked(std::span<const TokenId> prompt) const {
    return {.tokens = prompt, .vocab_size = vocab_size_};
  }
  Result<HttpReply> Post(const std::string& path, const boost::json::object& body) const;
  // An answer of status 200, or what the server says against it.
  Result<std::string> Accepted(const std::string& path, const boost::json::object& body) const;
  boost::json::object Completion(std::span<const TokenId> prompt, int32_t max_tokens) const;
  boost::json::object Native(std::span<const TokenId> prompt, int32_t max_tokens) const;
  Result<Answer> GreedyCompletion(std::span<const TokenId> prompt, int32_t max_tokens);
  Status AddEcho(std::span<const TokenId> prompt, Answer* answer);

  AskOptions options_;
  Target target_;
  std::string model_, owner_;
  bool native_ = false;
  int32_t vocab_size_ = 0;
  PromptSource prompt_source_ = PromptSource::kField;
};

}  // namespace fathom
