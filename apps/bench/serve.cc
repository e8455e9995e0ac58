// fathom bench serve: loads an OpenAI-compatible server and reports what its clients see.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench.h"
#include "client.h"
#include "engine_flags.h"
#include "load_run.h"
#include "source.h"
#include "summary.h"
#include "usage.h"

namespace fathom {
namespace {

namespace json = boost::json;
using boost::system::error_code;

Result<Target> Resolve(const LoadOptions& options) {
  Result<Target> target = Target::Resolve(options.base_url, options.api_key, options.timeout_s);
  return target.ok() ? std::move(target) : target.status().WithContext("--base-url");
}

// The string at `pointer` of the JSON that the server has at `path`; "" if there is none.
Result<std::string> StringAt(const Target& target, const std::string& path,
                             std::string_view pointer) {
  const HttpReply reply = TRY(Fetch(target, {.path = path}));
  if (reply.status != 200) {
    return Unavailable("GET {}: HTTP {}: {}", path, reply.status, ErrorMessage(reply.body));
  }
  error_code error;
  const json::value value = json::parse(reply.body, error);
  const json::value* found = error ? nullptr : value.find_pointer(pointer, error);
  if (found == nullptr || !found->is_string()) return std::string();
  return std::string(found->get_string().data(), found->get_string().size());
}

// The first model that the server lists.
Result<std::string> FirstModel(const Target& target) {
  std::string id = TRY(StringAt(target, "/v1/models", "/data/0/id"));
  if (id.empty()) {
    return Unavailable("the server lists no model under /v1/models: name one with --model");
  }
  return id;
}

// What the server was built from; "" if it does not say: servers other than fathom, and those on
// GPUs.
std::string SourcesOf(const Target& target) {
  const Result<std::string> sources = StringAt(target, "/version", "/sources");
  return sources.ok() ? *sources : "";
}

// From "ttft:500" and the like.
Result<ServiceLevel> ParseLevel(const std::vector<std::string>& bounds) {
  ServiceLevel level;
  for (const std::string& bound : bounds) {
    const size_t colon = std::min(bound.find(':'), bound.size());
    const std::string name = bound.substr(0, colon);
    std::optional<double>* of = name == "ttft"   ? &level.ttft_ms
                                : name == "tpot" ? &level.tpot_ms
                                : name == "e2el" ? &level.e2el_ms
                                                 : nullptr;
    double bound_ms = 0;
    if (of == nullptr || colon == bound.size() ||
        !CLI::detail::lexical_cast(bound.substr(colon + 1), bound_ms) || !(bound_ms > 0)) {
      return InvalidArgument("--goodput {}: it is ttft:MS, tpot:MS or e2el:MS", bound);
    }
    *of = bound_ms;
  }
  return level;
}

// Of each turn of all talks.
json::array ByTurn(const std::vector<RequestRecord>& records, int32_t turns) {
  json::array out;
  for (size_t turn = 0; turn < static_cast<size_t>(turns); ++turn) {
    std::vector<RequestRecord> mine;
    for (size_t i = turn; i < records.size(); i += static_cast<size_t>(turns)) {
      mine.push_back(records[i]);
    }
    const LoadSummary summary = Summarize(mine, {});
    out.push_back({{"turn", turn + 1},
                   {"total_input_tokens", summary.prompt_tokens},
                   {"cached_share", summary.CachedShare()},
                   {"median_ttft_ms", summary.ttft_ms.median},
                   {"p99_ttft_ms", summary.ttft_ms.p99}});
  }
  return out;
}

void PrintJson(const LoadOptions& o, const LoadSummary& summary, const std::string& sources,
               json::array by_turn) {
  json::object out = RunRecord();
  out["benchmark"] = "serve";
  if (!sources.empty()) out["sources"] = sources;
  out["base_url"] = o.base_url;
  out["endpoint"] = o.endpoint;
  out["model"] = o.source.model;
  out["label"] = o.label;
  out["num_prompts"] = o.source.num_prompts;
  out["request_rate"] = std::isinf(o.request_rate) ? json::value("inf") : o.request_rate;
  out["max_concurrency"] = o.max_concurrency > 0 ? json::value(o.max_concurrency) : json::value();
  out["dataset"] = o.source.dataset_path.empty() ? o.dataset : o.source.dataset_path;
  if (o.multi_turn()) {
    out["turns"] = o.turns;
    out["think_time_s"] = o.think_time_s;
    out["by_turn"] = std::move(by_turn);
  }
  out["input_len"] =
      o.source.dataset_path.empty() ? json::value(o.source.input_len) : json::value();
  if (o.source.prefix_len > 0) out["prefix_len"] = o.source.prefix_len;
  out["output_len"] = o.source.output_len;
  for (auto& member : ToJson(summary)) out[member.key()] = std::move(member.value());
  fmt::print("{}\n", json::serialize(out));
}

// A request is a connection, and a connection an open file.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // otherwise connections fail, and say so
}

Status CheckDataset(const LoadOptions& o) {
  if (!o.multi_turn()) return {};
  if (!o.source.chat) {
    return InvalidArgument(
        "--dataset multi-turn: turns are messages: add --endpoint /v1/chat/completions");
  }
  if (!o.source.dataset_path.empty()) {
    return InvalidArgument("--dataset multi-turn makes random talks: leave --dataset-path out");
  }
  if (o.source.num_prompts % o.turns != 0) {
    return InvalidArgument("--num-prompts {}: talks have {} turns each, of which it is no multiple",
                           o.source.num_prompts, o.turns);
  }
  return {};
}

Status BenchServe(LoadOptions options) {
  RaiseFileLimit();
  const ServiceLevel level = TRY(ParseLevel(options.goodput));
  options.source.chat = options.endpoint.ends_with("/chat/completions");
  TRY(CheckDataset(options));
  const Target target = TRY(Resolve(options));
  if (options.source.model.empty()) options.source.model = TRY(FirstModel(target));
  const RequestSource source = TRY(RequestSource::Make(options.source));
  const std::string sources = options.json ? SourcesOf(target) : "";
  LoadRun run(options, target, source);
  // The first requests show whether the server understands, and are not counted.
  const int64_t count = options.source.num_prompts;
  for (const RequestRecord& record : run.Run(count, options.num_warmups, INFINITY)) {
    if (!record.ok()) return Unavailable("a first request failed: {}", record.error);
  }
  const int32_t turns = options.multi_turn() ? options.turns : 1;
  const std::optional<DraftCounts> before = FetchDraftCounts(target);
  const std::vector<RequestRecord> records = run.Run(0, count, options.request_rate, turns);
  const std::optional<DraftCounts> after = FetchDraftCounts(target);
  LoadSummary summary = Summarize(records, level);
  if (before && after) summary.drafts = *after - *before;
  if (options.json) {
    PrintJson(options, summary, sources, ByTurn(records, turns));
  } else {
    fmt::print("{}, {} of {}: {}", options.source.model, options.endpoint, options.base_url,
               ToTable(summary));
  }
  if (summary.failed > 0) {
    return Unavailable("{} of {} requests failed; --max-concurrency sends fewer at a time",
                       summary.failed, summary.failed + summary.completed);
  }
  return {};
}

void AddTargetFlags(CLI::App& command, LoadOptions* options) {
  const char* group = "Server";
  command.add_option("--base-url", options->base_url, "http://HOST:PORT, with or without /v1")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--endpoint", options->endpoint,
                  "A path that ends in /completions or /chat/completions")
      ->check([](const std::string& path) {
        return path.starts_with('/') && path.ends_with("/completions")
                   ? ""
                   : path + " does not end in /completions or /chat/completions";
      })
      ->capture_default_str()
      ->group(group);
  command.add_option("--model", options->source.model, "Otherwise the first one of /v1/models")
      ->group(group);
  command.add_option("--api-key", options->api_key, "Otherwise OPENAI_API_KEY of the environment")
      ->envname("OPENAI_API_KEY")
      ->group(group);
  command.add_option("--timeout", options->timeout_s, "Seconds that one request may take")
      ->check(Between(0.1, 1e6))
      ->capture_default_str()
      ->group(group);
}

void AddLoadFlags(CLI::App& command, LoadOptions* options) {
  const char* group = "Load";
  command.add_option("--num-prompts", options->source.num_prompts, "Requests")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--request-rate", options->request_rate,
                  "Requests a second, at random times (Poisson); inf: all at once")
      ->check(Between(1e-6, std::numeric_limits<double>::infinity()))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-concurrency", options->max_concurrency,
                  "Requests under way at the same time; others wait. 0: any number")
      ->check(CLI::Range(0, 1'000'000))
      ->group(group);
  command.add_option("--num-warmups", options->num_warmups, "Requests before those that count")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--seed", options->source.seed, "Of prompts and times")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--goodput", options->goodput,
                  "Bounds in milliseconds that a good request keeps, as ttft:500 tpot:50 e2el:9000")
      ->type_name("NAME:MS")
      ->group(group);
  command
      .add_option("--label", options->label,
                  "What else is to stand in the JSON object, as the server's flags")
      ->group(group);
  command.add_flag("--json", options->json, "One JSON object instead of a table")->group(group);
}

void AddTalkFlags(CLI::App& command, LoadOptions* options) {
  const char* group = "Prompts";
  auto* dataset = command
                      .add_option("--dataset", options->dataset,
                                  "random: requests of their own; multi-turn: talks, in which each "
                                  "turn has all questions and answers before it")
                      ->check(CLI::IsMember({"random", "multi-turn"}))
                      ->capture_default_str()
                      ->group(group);
  command
      .add_option("--turns", options->turns,
                  "Of a talk; --num-prompts counts turns, --request-rate and --max-concurrency "
                  "talks")
      ->check(CLI::Range(2, 10'000))
      ->capture_default_str()
      ->needs(dataset)
      ->group(group);
  command
      .add_option("--think-time", options->think_time_s,
                  "Seconds between an answer and the talk's next turn, on average")
      ->check(Between(0, 3600))
      ->capture_default_str()
      ->needs(dataset)
      ->group(group);
}

void AddPromptFlags(CLI::App& command, SourceOptions* source) {
  const char* group = "Prompts";
  command
      .add_option("--dataset-path", source->dataset_path,
                  "JSON lines with \"prompt\" (text or token ids) or \"messages\", and perhaps "
                  "\"max_tokens\"; otherwise prompts are random")
      ->check(CLI::ExistingFile)
      ->group(group);
  command
      .add_option("--random-input-len", source->input_len,
                  "Tokens of a random prompt (of a chat message: short words)")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--random-prefix-len", source->prefix_len,
                  "Tokens before these, the same for all prompts")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str()
      ->group(group);
  command.add_option("--random-output-len,--output-len", source->output_len, "Tokens of an answer")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--random-vocab-size", source->vocab_size,
                  "Random prompts have token ids from 10 up to this")
      ->check(CLI::Range(11, 1 << 24))
      ->capture_default_str()
      ->group(group);
  command.add_option("--temperature", source->temperature, "0: always the likeliest token")
      ->check(Between(0, 2))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag_callback(
          "--no-ignore-eos", [source] { source->ignore_eos = false; },
          "Let answers end by themselves, or do not send ignore_eos to a server that has none")
      ->group(group);
}

}  // namespace

void AddBenchServe(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "serve", "Load an OpenAI-compatible server and report throughput and latencies.");
  auto options = std::make_shared<LoadOptions>();
  AddTargetFlags(*command, options.get());
  AddLoadFlags(*command, options.get());
  AddTalkFlags(*command, options.get());
  AddPromptFlags(*command, &options->source);
  OnRun(*command, exit_code, [options] { return BenchServe(*options); });
}

}  // namespace fathom
