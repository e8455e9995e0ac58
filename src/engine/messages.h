// What passes between an API server and an engine, in one process or across hosts: plain structs,
// tokens only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "grammar/grammar.h"
#include "request/params.h"

namespace fathom {

struct GenerateRequest : RequestParams {
  RequestId id{};
  uint64_t client = 0;     // who asks: those that wait take turns
  int32_t priority = 0;    // one of a lower number comes before
  std::string cache_salt;  // pages of prompts are shared among requests of equal ones
  std::shared_ptr<const Grammar> grammar;  // of the answer; null: none
  std::optional<TokenId> grammar_after;    // it begins behind this token; else with the first
  int64_t arrived_ns = 0;                  // the engine's to set
};

struct GeneratedToken {
  TokenId id{};
  std::optional<TokenLogprobs> logprobs;  // if asked for
};

enum class FinishReason { kStop, kLength, kCancelled, kError };

// News of a request. The last one has `finish`.
struct RequestOutput {
  RequestId id{};
  std::vector<GeneratedToken> tokens;  // since the last output; with kStop the last one of all is
                                       // the stop token that was sampled
  int64_t queued_ns = 0;  // with the first token: how long it waited to enter the batch
  // Once, with the first token: for prompt positions 1.. (the first token has no probability).
  std::vector<TokenLogprobs> prompt_logprobs;
  int32_t cached_tokens = 0;  // with tokens: of the prompt, found in pages of requests before it
  int32_t preemptions = 0;    // with tokens: how often it gave its pages back, so far
  std::optional<FinishReason> finish;
  Status error;  // why, with kError
};

// How many tokens steps had.
struct TokensOfSteps {
  static constexpr std::array<int64_t, 15> kBounds = {
      1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
  std::array<int64_t, kBounds.size() + 1>
      steps{};         // at most kBounds[i], and more than those before
  int64_t tokens = 0;  // of all

  void Add(int64_t of_step) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), of_step);
    ++steps[static_cast<size_t>(bound - kBounds.begin())];
    tokens += of_step;
  }
};

// Of decodes that had drafts.
struct DraftStats {
  static constexpr size_t kPlaces = 15;

  int64_t decodes = 0;
  int64_t proposed = 0;                        // and verified
  int64_t accepted = 0;                        // of these
  std::array<int64_t, kPlaces> accepted_at{};  // of these, in each place of a decode's drafts

  void Add(int64_t drafts, int64_t stood);
};

// Of a data-parallel group.
struct GroupStats {
  int64_t running = 0;
  double kv_usage = 0;  // share of its pages in use, 0..1
};

struct RankStats {
  static constexpr auto kMemoryKinds = std::to_array<std::string_view>(
      {"weights", "kv_cache", "activations", "work_space", "exchange", "request_state", "logits"});

  int rank = 0, stage = 0, group = 0;
  std::array<uint64_t, kMemoryKinds.size()> memory{};  // bytes of its device, by kind
  uint64_t steps = 0;                                  // that have ended there
  uint64_t busy_ns = 0;  // in which it had steps to do, waits for other ranks among them
};

// A snapshot for metrics.
struct EngineStats {
  std::vector<GroupStats> groups;
  std::vector<RankStats> ranks;  // of other hosts as of their last answers
  int64_t running = 0;
  int64_t waiting = 0;
  double kv_usage = 0;  // share of the pages in use, 0..1
  int64_t total_pages = 0;
  int64_t free_pages = 0;
  int64_t steps = 0;
  TokensOfSteps tokens_of_steps;
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;  // computed, since start
  int64_t generated_tokens = 0;
  // Prompt tokens that were looked up in the prefix cache, and those that were found.
  int64_t prefix_queries = 0;
  int64_t prefix_hits = 0;
  DraftStats drafts;
};

// THREAD: any.
class EngineClient {
 public:
  virtual ~EngineClient() = default;
  // kResourceExhausted when the queue is full, kInvalidArgument for what can never run,
  // kUnavailable while stopping, or once the engine failed. Outputs go to the callback that the
  // engine was made with.
  virtual Status Submit(GenerateRequest request) = 0;
  // Frees the request's pages within a step; unknown ids are ignored. The last output then has
  // kCancelled, unless the request ended first.
  virtual void Cancel(RequestId id) = 0;
  // Whether `requests` more would find room in the queue now: asked before any tokenising.
  virtual bool HasRoom(int requests) const = 0;
  // Requests from now on share no page that was written before.
  virtual void ResetPrefixCache() = 0;
  virtual EngineStats Stats() const = 0;
  // Why the engine failed, if it did: known before any of its requests ends for that.
  virtual Status status() const = 0;
  virtual int32_t max_model_len() const = 0;  // prompt + generated tokens of one request
};

}  // namespace fathom
