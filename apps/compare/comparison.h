// Asks both sides everything, and keeps what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agreement.h"
#include "asked_server.h"
#include "draft_counts.h"
#include "load_engine.h"
#include "server/request_stream.h"
#include "summary.h"

namespace fathom {

struct CompareOptions {
  EngineSettings engine;
  AskOptions server;    // the engine fills in its vocabulary
  std::string against;  // a second server, for speed alone; "": none
  std::string prompts;  // a file; "": a set of its own
  int32_t max_tokens = 64;
  std::vector<int32_t> loads = {1, 8, 32};  // requests at the same time
  int32_t load_input_len = 128, load_output_len = 64;
  AgreementLimits limits;
  bool json = false;
};

struct ComparedPrompt {
  std::string name;
  size_t tokens = 0;
  Agreement agreement;
};

// Of prompts whose tokens the server said.
struct TokenizerCheck {
  int64_t asked = 0;
  std::vector<std::string> differing;  // names of prompts
};

// The same schema on both sides.
struct StructuredCheck {
  std::string refusal;  // what the server said against it; "": it answered
  size_t our_tokens = 0, their_tokens = 0, equal_tokens = 0;  // equal: from the first on
  bool our_json = false, their_json = false;                  // whole, and well formed
  std::optional<size_t> forbidden_at;  // the first of their tokens that our grammar forbids
};

struct LoadCheck {
  int32_t concurrency = 0;
  LoadSummary server;
  std::optional<LoadSummary> against;
};

struct Comparison {
  std::string our_model, our_ops, their_model, their_owner;
  std::string prompt_source;  // AskedServer::prompt_source()
  std::vector<ComparedPrompt> prompts;
  std::vector<std::string> left_out;
  Agreement all;
  Repeats repeats;  // of the server's greedy answers
  Judgement judgement;
  TokenizerCheck tokenizers;
  std::optional<DraftCounts> our_drafts, their_drafts;  // while greedy answers were made
  std::optional<StructuredCheck> structured;            // nothing: without a text to ask
  std::vector<LoadCheck> loads;
};

struct ComparedServers {
  AskedServer& server;
  const AskedServer* against = nullptr;  // CompareOptions::against; null: none
};
// `loaded`'s engine has been started, and delivers to `outputs`.
Result<Comparison> RunComparison(const CompareOptions& options, const ComparedServers& servers,
                                 LoadedEngine& loaded, EngineOutputs& outputs);

}  // namespace fathom
