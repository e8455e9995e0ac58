#include "server/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <mutex>
#include <vector>

#include "base/log_thread.h"
#include "server/exposition.h"

namespace fathom {

namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kFirstTokenBuckets = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                    0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                    20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
const Buckets kTokenBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                               0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1.0,   2.5,
                               5.0,   7.5,    10.0,  20.0, 40.0,  80.0};
const Buckets kRequestBuckets = {0.01,  0.03,  0.1,   0.3,   0.5,    0.8,    1.0,   1.5,  2.0,
                                 2.5,   5.0,   10.0,  15.0,  20.0,   30.0,   40.0,  50.0, 60.0,
                                 120.0, 240.0, 480.0, 960.0, 1920.0, 3840.0, 7680.0};
const Buckets kPreemptionBuckets = {1, 2, 3, 4, 5, 10, 20};
const Buckets kChoiceBuckets = {1, 2, 5, 10, 20, 50, 100};
const Buckets kStepBuckets(TokensOfSteps::kBounds.begin(), TokensOfSteps::kBounds.end());
const Buckets kCountBuckets = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                               1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

// A counter of what is counted elsewhere.
void RaiseTo(prometheus::Counter& counter, double total) {
  if (total > counter.Value()) counter.Increment(total - counter.Value());
}

}  // namespace

struct Metrics::Families {
  explicit Families(const std::string& model_name)
      : labels({{"engine", "0"}, {"model_name", model_name}}) {}

  prometheus::Gauge& Gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  prometheus::Counter& Counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  }
  prometheus::Histogram& Histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     buckets);
  }

  prometheus::Labels With(const char* name, const std::string& value) const {
    prometheus::Labels more = labels;
    more[name] = value;
    return more;
  }

  const prometheus::Labels labels;
  prometheus::Registry registry;

  // Of each data-parallel group, which are vLLM's engines.
  prometheus::Family<prometheus::Gauge>& running = prometheus::BuildGauge()
                                                       .Name("vllm:num_requests_running")
                                                       .Help("Requests in a group's running batch.")
                                                       .Register(registry);
  prometheus::Gauge& waiting =
      Gauge("vllm:num_requests_waiting", "Requests waiting for a place in the batch.");
  prometheus::Gauge& waiting_for_room =
      prometheus::BuildGauge()
          .Name("vllm:num_requests_waiting_by_reason")
          .Help("The same, by what they wait for: slots and pages.")
          .Register(registry)
          .Add(With("reason", "capacity"));
  prometheus::Family<prometheus::Gauge>& cache_config = prometheus::BuildGauge()
                                                            .Name("vllm:cache_config_info")
                                                            .Help("How the KV cache is laid out.")
                                                            .Register(registry);
  prometheus::Family<prometheus::Gauge>& kv_usage =
      prometheus::BuildGauge()
          .Name("vllm:kv_cache_usage_perc")
          .Help("Share of a group's KV cache in use; 1 is all.")
          .Register(registry);
  prometheus::Counter& preemptions =
      Counter("vllm:num_preemptions_total", "Requests put back to waiting for lack of pages.");
  prometheus::Counter& prefix_queries =
      Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.");
  prometheus::Counter& prefix_hits =
      Counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.");
  prometheus::Counter& drafts =
      Counter("vllm:spec_decode_num_drafts_total", "Decodes that verified drafts.");
  prometheus::Counter& draft_tokens =
      Counter("vllm:spec_decode_num_draft_tokens_total", "Drafts that were verified.");
  prometheus::Counter& accepted_tokens =
      Counter("vllm:spec_decode_num_accepted_tokens_total", "Drafts that stood.");
  prometheus::Family<prometheus::Counter>& accepted_at =
      prometheus::BuildCounter()
          .Name("vllm:spec_decode_num_accepted_tokens_per_pos_total")
          .Help("Drafts that stood, by their place among a decode's.")
          .Register(registry);
  prometheus::Gauge& acceptance =
      Gauge("vllm:spec_decode_draft_acceptance_rate", "The share of all drafts that stood.");
  prometheus::Gauge& accepted_length = Gauge("fathom:spec_decode_mean_accepted_length",
                                             "Tokens of a decode that verified drafts, its own "
                                             "among them.");
  prometheus::Counter& prompt_tokens =
      Counter("vllm:prompt_tokens_total", "Prompt tokens processed.");
  prometheus::Counter& cached_tokens = Counter(
      "vllm:prompt_tokens_cached_total", "Prompt tokens that were found in the prefix cache.");
  prometheus::Family<prometheus::Counter>& tokens_by_source =
      prometheus::BuildCounter()
          .Name("vllm:prompt_tokens_by_source_total")
          .Help("Prompt tokens by where they came from: computed here, or found in the cache.")
          .Register(registry);
  prometheus::Family<prometheus::Gauge>& sleep_state =
      prometheus::BuildGauge()
          .Name("vllm:engine_sleep_state")
          .Help("1 for the state that the engine is in; it never sleeps.")
          .Register(registry);
  prometheus::Counter& generated_tokens =
      Counter("vllm:generation_tokens_total", "Tokens generated.");
  prometheus::Family<prometheus::Counter>& ended = prometheus::BuildCounter()
                                                       .Name("vllm:request_success_total")
                                                       .Help("Requests that ended, by reason.")
                                                       .Register(registry);
  prometheus::Histogram& to_first = Histogram(
      "vllm:time_to_first_token_seconds", "From arrival to the first token.", kFirstTokenBuckets);
  prometheus::Histogram& gap = Histogram("vllm:inter_token_latency_seconds",
                                         "Between two deliveries of tokens.", kTokenBuckets);
  prometheus::Histogram& per_token =
      Histogram("vllm:request_time_per_output_token_seconds",
                "Mean time a token of a request, after its first.", kTokenBuckets);
  prometheus::Histogram& queue_time = Histogram(
      "vllm:request_queue_time_seconds", "From arrival to entering the batch.", kRequestBuckets);
  prometheus::Histogram& prefill_time =
      Histogram("vllm:request_prefill_time_seconds", "From entering the batch to the first token.",
                kRequestBuckets);
  prometheus::Histogram& decode_time = Histogram(
      "vllm:request_decode_time_seconds", "From the first token to the last.", kRequestBuckets);
  prometheus::Histogram& inference_time =
      Histogram("vllm:request_inference_time_seconds", "From entering the batch to the last token.",
                kRequestBuckets);
  prometheus::Histogram& latency =
      Histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", kRequestBuckets);
  prometheus::Histogram& request_prompt =
      Histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", kCountBuckets);
  prometheus::Histogram& request_generated =
      Histogram("vllm:request_generation_tokens", "Tokens generated for a request.", kCountBuckets);
  prometheus::Histogram& request_computed = Histogram(
      "vllm:request_prefill_kv_computed_tokens",
      "Prompt tokens of a request that were not found in the prefix cache.", kCountBuckets);
  prometheus::Histogram& request_preemptions = Histogram(
      "vllm:request_num_preemptions",
      "How often a request was put back to waiting for lack of pages.", kPreemptionBuckets);
  prometheus::Histogram& most_generated =
      Histogram("vllm:request_max_num_generation_tokens",
                "Tokens of the longest of a prompt's choices.", kCountBuckets);
  prometheus::Histogram& asked_choices =
      Histogram("vllm:request_params_n", "Choices that requests ask for.", kChoiceBuckets);
  prometheus::Histogram& asked_tokens =
      Histogram("vllm:request_params_max_tokens", "Tokens that a choice may have.", kCountBuckets);
  prometheus::Histogram& step_tokens =
      Histogram("vllm:iteration_tokens_total", "Tokens of a step.", kStepBuckets);
  // Of each rank.
  prometheus::Family<prometheus::Gauge>& rank_memory =
      prometheus::BuildGauge()
          .Name("fathom:rank_memory_bytes")
          .Help("What a rank has of its device's memory, by what for.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& rank_steps =
      prometheus::BuildCounter()
          .Name("fathom:rank_steps_total")
          .Help("Steps that have ended on a rank.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& rank_busy =
      prometheus::BuildCounter()
          .Name("fathom:rank_busy_seconds_total")
          .Help("Time in which a rank had steps to do, waits for other ranks among it.")
          .Register(registry);
  prometheus::Gauge& pages = Gauge("fathom:kv_cache_pages", "Pages of the KV cache.");
  prometheus::Counter& steps = Counter("fathom:engine_steps_total", "Forward passes.");

  prometheus::Gauge& grammar_memory = Gauge("fathom:grammar_memory_bytes",
                                            "Of grammars of structured output, those of requests "
                                            "in flight among them, and their answers.");
  prometheus::Counter& dropped_log_lines =
      Counter("fathom:log_lines_dropped_total", "Log lines that nobody read in time.");

  std::mutex render_mutex;
  // Guarded by render_mutex:
  TokensOfSteps seen_steps;
  prometheus::Gauge* cache_info = nullptr;

  void Tell(const RankStats& of);
};

void Metrics::Families::Tell(const RankStats& of) {
  prometheus::Labels rank = labels;
  rank["engine"] = std::to_string(of.group);
  rank["rank"] = std::to_string(of.rank);
  rank["stage"] = std::to_string(of.stage);
  RaiseTo(rank_steps.Add(rank), static_cast<double>(of.steps));
  RaiseTo(rank_busy.Add(rank), 1e-9 * static_cast<double>(of.busy_ns));
  for (size_t kind = 0; kind < of.memory.size(); ++kind) {
    rank["kind"] = RankStats::kMemoryKinds[kind];
    rank_memory.Add(rank).Set(static_cast<double>(of.memory[kind]));
  }
}

Metrics::Metrics(const std::string& model_name)
    : families_(std::make_unique<Families>(model_name)) {
  // Every reason is there from the start, so that rates have a zero to begin from.
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    families_->ended.Add(families_->With("finished_reason", reason));
  }
  // So is every source; no cache but the engine's own has tokens.
  for (const char* source : {"local_compute", "local_cache_hit", "external_kv_transfer"}) {
    families_->tokens_by_source.Add(families_->With("source", source));
  }
}

Metrics::~Metrics() = default;

void Metrics::OnFirstToken(int64_t prompt_tokens, int64_t cached_tokens, double seconds) {
  const auto cached = static_cast<double>(cached_tokens);
  const double computed = static_cast<double>(prompt_tokens) - cached;
  families_->prompt_tokens.Increment(computed + cached);
  families_->cached_tokens.Increment(cached);
  families_->tokens_by_source.Add(families_->With("source", "local_compute")).Increment(computed);
  families_->tokens_by_source.Add(families_->With("source", "local_cache_hit")).Increment(cached);
  families_->to_first.Observe(seconds);
}

void Metrics::OnTokens(int64_t tokens) {
  families_->generated_tokens.Increment(static_cast<double>(tokens));
}

void Metrics::OnTokenGap(double seconds) {
  families_->gap.Observe(seconds);
}

void Metrics::OnEnded(const Ended& ended) {
  families_->ended.Add(families_->With("finished_reason", std::string(ended.reason))).Increment();
  families_->latency.Observe(ended.at);
  families_->request_prompt.Observe(static_cast<double>(ended.prompt_tokens));
  families_->request_generated.Observe(static_cast<double>(ended.generated_tokens));
  families_->asked_tokens.Observe(static_cast<double>(ended.max_tokens));
  families_->request_preemptions.Observe(static_cast<double>(ended.preemptions));
  if (ended.generated_tokens == 0) return;
  families_->request_computed.Observe(
      static_cast<double>(ended.prompt_tokens - ended.cached_tokens));
  families_->queue_time.Observe(ended.entered);
  families_->prefill_time.Observe(ended.first - ended.entered);
  families_->decode_time.Observe(ended.last - ended.first);
  families_->inference_time.Observe(ended.last - ended.entered);
  if (ended.generated_tokens == 1) return;
  families_->per_token.Observe((ended.at - ended.first) /
                               static_cast<double>(ended.generated_tokens - 1));
}

void Metrics::OnPromptEnded(int64_t choices, int64_t most_generated_tokens) {
  families_->asked_choices.Observe(static_cast<double>(choices));
  families_->most_generated.Observe(static_cast<double>(most_generated_tokens));
}

std::string Metrics::Render(const EngineStats& stats, size_t grammar_bytes) {
  std::lock_guard lock(families_->render_mutex);
  for (size_t group = 0; group < stats.groups.size(); ++group) {
    prometheus::Labels labels = families_->labels;
    labels["engine"] = std::to_string(group);
    families_->running.Add(labels).Set(static_cast<double>(stats.groups[group].running));
    families_->kv_usage.Add(labels).Set(stats.groups[group].kv_usage);
    for (const char* state : {"awake", "weights_offloaded", "discard_all"}) {
      labels["sleep_state"] = state;
      families_->sleep_state.Add(labels).Set(state == std::string_view("awake") ? 1 : 0);
    }
  }
  for (const RankStats& rank : stats.ranks) families_->Tell(rank);
  families_->waiting.Set(static_cast<double>(stats.waiting));
  families_->waiting_for_room.Set(static_cast<double>(stats.waiting));
  families_->grammar_memory.Set(static_cast<double>(grammar_bytes));
  families_->pages.Set(static_cast<double>(stats.total_pages));
  RaiseTo(families_->steps, static_cast<double>(stats.steps));
  RaiseTo(families_->dropped_log_lines, static_cast<double>(DroppedLogLines()));
  RaiseTo(families_->preemptions, static_cast<double>(stats.preemptions));
  RaiseTo(families_->prefix_queries, static_cast<double>(stats.prefix_queries));
  RaiseTo(families_->prefix_hits, static_cast<double>(stats.prefix_hits));
  RaiseTo(families_->drafts, static_cast<double>(stats.drafts.decodes));
  RaiseTo(families_->draft_tokens, static_cast<double>(stats.drafts.proposed));
  const auto accepted = static_cast<double>(stats.drafts.accepted);
  RaiseTo(families_->accepted_tokens, accepted);
  if (stats.drafts.proposed > 0) {
    families_->acceptance.Set(accepted / static_cast<double>(stats.drafts.proposed));
  }
  if (stats.drafts.decodes > 0) {
    families_->accepted_length.Set(1 + accepted / static_cast<double>(stats.drafts.decodes));
  }
  for (size_t place = 0; place < stats.drafts.accepted_at.size(); ++place) {
    if (stats.drafts.accepted_at[place] == 0) break;
    RaiseTo(families_->accepted_at.Add(families_->With("position", std::to_string(place))),
            static_cast<double>(stats.drafts.accepted_at[place]));
  }
  if (families_->cache_info == nullptr) {  // what it says stands from the start on
    prometheus::Labels labels = families_->labels;
    labels["block_size"] = std::to_string(kPageTokens);
    labels["num_gpu_blocks"] = std::to_string(stats.total_pages);
    families_->cache_info = &families_->cache_config.Add(labels);
    families_->cache_info->Set(1);
  }
  std::vector<double> more;
  for (size_t i = 0; i < stats.tokens_of_steps.steps.size(); ++i) {
    more.push_back(
        static_cast<double>(stats.tokens_of_steps.steps[i] - families_->seen_steps.steps[i]));
  }
  families_->step_tokens.ObserveMultiple(
      more, static_cast<double>(stats.tokens_of_steps.tokens - families_->seen_steps.tokens));
  families_->seen_steps = stats.tokens_of_steps;
  return Exposition(families_->registry);
}

}  // namespace fathom
