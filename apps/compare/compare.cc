// fathom compare: this engine and a running server, asked the same.
#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "bench.h"
#include "commands.h"
#include "comparison.h"
#include "engine_flags.h"
#include "report.h"
#include "taken_flags.h"
#include "usage.h"

namespace fathom {
namespace {

namespace json = boost::json;

Result<AskedServer> Connect(const char* flag, const AskOptions& options) {
  Result<AskedServer> server = AskedServer::Connect(options);
  return server.ok() ? std::move(server) : server.status().WithContext(flag);
}

Result<Verdict> RunCompare(const CompareOptions& options) {
  // Before a model is loaded, which may take minutes.
  AskedServer server = TRY(Connect("--server", options.server));
  std::optional<AskedServer> against;
  if (!options.against.empty()) {
    AskOptions other = options.server;
    other.url = options.against;
    other.model.clear();
    against = TRY(Connect("--against", other));
  }
  EngineOutputs outputs;
  LoadedEngine loaded = TRY(LoadEngine(
      options.engine, [&](std::vector<RequestOutput> news) { outputs.Deliver(std::move(news)); }));
  loaded.engine->Start();
  const Comparison comparison = TRY(RunComparison(
      options, {.server = server, .against = against ? &*against : nullptr}, loaded, outputs));
  if (options.json) {
    json::object out = RunRecord();
    for (auto& member : ToJson(comparison, options, *loaded.tokenizer)) {
      out[member.key()] = std::move(member.value());
    }
    fmt::print("{}\n", json::serialize(out));
  } else {
    fmt::print("{}", ToPage(comparison, options, *loaded.tokenizer));
  }
  return comparison.judgement.verdict;
}

void AddServerFlags(CLI::App& command, CompareOptions* options) {
  const char* group = "Server";
  AskOptions& server = options->server;
  command.add_option("--server", server.url, "http://HOST:PORT of vLLM, SGLang or fathom")
      ->required()
      ->group(group);
  command.add_option("--model-name", server.model, "Otherwise the first one of /v1/models")
      ->group(group);
  command
      .add_option("--protocol", server.protocol,
                  "openai: /v1/completions; sglang: its own /generate; auto: by whom the server "
                  "names as its model's owner")
      ->check(CLI::IsMember({"auto", "openai", "sglang"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--api-key", server.api_key, "Otherwise OPENAI_API_KEY of the environment")
      ->envname("OPENAI_API_KEY")
      ->group(group);
  command.add_option("--timeout", server.timeout_s, "Seconds that one request may take")
      ->check(Between(0.1, 1e6))
      ->capture_default_str()
      ->group(group);
}

void AddPromptFlags(CLI::App& command, CompareOptions* options) {
  const char* group = "What is asked";
  command
      .add_option("--prompts", options->prompts,
                  "JSON lines with \"messages\", or a \"prompt\" of text or token ids; otherwise a "
                  "set of its own")
      ->check(CLI::ExistingFile)
      ->group(group);
  command.add_option("--max-tokens", options->max_tokens, "Of a greedy answer")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--top-logprobs", options->server.top,
                  "Likeliest tokens that both sides list at each position")
      ->check(CLI::Range(1, kMaxTopLogprobs))
      ->capture_default_str()
      ->group(group);
  group = "Speed";
  command
      .add_option("--loads", options->loads,
                  "Requests at the same time, for each load; 0 alone: no speed")
      ->delimiter(',')
      ->check(CLI::Range(0, 4096))
      ->default_str("1,8,32")
      ->group(group);
  command.add_option("--load-input-len", options->load_input_len, "Random tokens of a prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command.add_option("--load-output-len", options->load_output_len, "Tokens of an answer")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--against", options->against,
                  "http://HOST:PORT of a second server, as fathom serve, under the same loads")
      ->group(group);
  group = "Verdict";
  command
      .add_option("--mean-limit", options->limits.mean,
                  "By how much log-probabilities of answers may differ on average")
      ->check(Between(0, 100))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--divergence-limit", options->limits.divergence,
                  "By how much distributions over the likeliest tokens may (KL, in nats)")
      ->check(Between(0, 100))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--tie-limit", options->limits.tie,
                  "By how much, both sides added up, another token may be preferred")
      ->check(Between(0, 100))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--json", options->json, "One JSON object instead of a page")->group(group);
}

}  // namespace

void AddCompare(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "compare", "Ask a running vLLM, SGLang or fathom server and this engine the same.");
  auto options = std::make_shared<CompareOptions>();
  options->engine.max_num_seqs = 1;
  options->server.protocol = "auto";
  options->server.timeout_s = 600;
  options->server.top = 10;
  AddEngineFlags(*command, &options->engine);
  AddTemplateFlag(*command, &options->engine, "Engine");
  AddServerFlags(*command, options.get());
  AddPromptFlags(*command, options.get());
  AddLogLevel(*command, "warning");
  TakeWhatRunsAnyway(*command);
  OnRun(*command, exit_code, [options, &exit_code]() -> Status {
    std::erase(options->loads, 0);
    const Verdict verdict = TRY(RunCompare(*options));
    if (verdict != Verdict::kAgree) exit_code = 1;
    return {};
  });
}

}  // namespace fathom
