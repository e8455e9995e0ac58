#include "simulation/scenario.h"

#include <algorithm>
#include <limits>
#include <span>

#include "cache/page_pool.h"
#include "simulation/pretend_model.h"

namespace fathom::simulation {
namespace {

// What a seed's requests have in common.
struct Workload {
  bool short_prompts = false;
  int32_t max_tokens = 40;   // of a request, at most
  uint32_t stop_tokens = 4;  // of a request, fewer than this
  uint32_t pause_bits = 20;  // between bursts at most 2^pause_bits ns
  bool priorities = false;
  uint32_t scores_in = 3;  // one request in so many wants log-probabilities of its prompt
  std::vector<std::vector<TokenId>> beginnings;  // that prompts share; most prompts have one
};

TokenId RandomToken(Rng& rng) {
  return TokenId{static_cast<int32_t>(rng.Below(kVocab))};
}

Workload RandomWorkload(Rng& rng) {
  Workload workload;
  workload.short_prompts = rng.Below(2) == 0;
  workload.max_tokens = rng.Below(2) == 0 ? 500 : 40;
  constexpr uint32_t kStopTokens[] = {1, 2, 3, 3, 9};
  workload.stop_tokens = kStopTokens[rng.Below(std::size(kStopTokens))];
  workload.pause_bits = 20 + rng.Below(11);
  workload.priorities = rng.Below(3) == 0;
  return workload;
}

int64_t RandomAbsorbedLimit(Rng& rng, int32_t chunk) {
  switch (rng.Below(4)) {
    case 0: return std::numeric_limits<int64_t>::max();
    case 1: return 0;
    case 2: return rng.Below(8);
    default: return rng.Below(static_cast<uint32_t>(chunk) + 1);
  }
}

EngineOptions RandomOptions(Rng& rng) {
  EngineOptions options;
  SchedulerOptions& s = options.scheduler;
  constexpr int32_t kChunks[] = {1, 16, 64, 100, 128, 192};
  s.max_num_seqs = 1 + static_cast<int32_t>(rng.Below(12));
  s.prefill_chunk = kChunks[rng.Below(std::size(kChunks))];
  s.max_num_batched_tokens = std::max(s.prefill_chunk, s.max_num_seqs) +
                             static_cast<int32_t>(rng.Below(3) * rng.Below(128));
  s.max_model_len = 2 + static_cast<int32_t>(rng.Below(500));
  const int32_t longest = PagesFor(s.max_model_len - 1);
  // From too few for the longest request to plenty for all, and often few.
  const int32_t shares[] = {1, 2, s.max_num_seqs + 1};
  const int32_t plenty = longest * shares[rng.Below(std::size(shares))];
  s.num_pages = std::max(1, longest - 1 + static_cast<int32_t>(rng.Below(plenty)));
  if (rng.Below(3) == 0) s.stages = 2 + static_cast<int32_t>(rng.Below(3));
  s.depth = (s.stages > 1 ? s.stages + 1 : 1) + static_cast<int32_t>(rng.Below(4));
  s.max_drafts = static_cast<int32_t>(rng.Below(5));
  s.absorbed_limit = RandomAbsorbedLimit(rng, s.prefill_chunk);
  s.prefix_caching = rng.Below(4) > 0;
  s.reuse_decoded = rng.Below(3) == 0;
  options.adapts_drafts = rng.Below(2) == 0;
  if (options.adapts_drafts && rng.Below(2) == 0) {  // measured, or so somebody says
    for (const int32_t decodes : DraftDepth::Sizes(s.max_num_seqs)) {
      for (int32_t drafts = 0; drafts <= s.max_drafts; ++drafts) {
        if (rng.Below(8) > 0) {
          options.step_times.push_back({decodes, drafts, 1e-5 * (1.0 + rng.Below(100))});
        }
      }
    }
  }
  if (s.max_drafts > 0 && rng.Below(2) == 0) s.lookahead = s.max_drafts - 1;
  if (rng.Below(6) == 0) {  // keys that collide
    s.prefix_hash = [](std::span<const uint8_t> bytes) {
      return PrefixKey{static_cast<uint8_t>(Sha256(bytes)[0] & 15)};
    };
  }
  options.max_queue = static_cast<int32_t>(rng.Below(rng.Below(4) > 0 ? 300 : 20));
  options.vocab_size = kVocab;
  return options;
}

// Many requests that begin short, grow long, and never all fit.
void Crowd(Rng& rng, SchedulerOptions& s, Workload& workload) {
  s.max_num_seqs = 3 + static_cast<int32_t>(rng.Below(10));
  s.max_num_batched_tokens = std::max(s.max_num_batched_tokens, s.max_num_seqs);
  s.num_pages = PagesFor(s.max_model_len - 1) + static_cast<int32_t>(rng.Below(4));
  workload.short_prompts = true;
  workload.max_tokens = 500;
  workload.stop_tokens = 1 + rng.Below(2);
}

// Long prompts that begin alike, short answers, and room for a few.
void Families(Rng& rng, SchedulerOptions& s, Workload& workload) {
  s.prefix_caching = true;
  s.max_model_len = 200 + static_cast<int32_t>(rng.Below(300));
  s.num_pages = PagesFor(s.max_model_len - 1) * (1 + static_cast<int32_t>(rng.Below(3)));
  s.depth = s.stages + 1 + static_cast<int32_t>(rng.Below(3));
  if (rng.Below(2) == 0) {  // chunks of which some parts are absorbed, pages long
    s.prefill_chunk = rng.Below(2) == 0 ? 128 : 192;
    s.absorbed_limit = kPageTokens + static_cast<int32_t>(rng.Below(60));
    s.max_num_batched_tokens = std::max(s.max_num_batched_tokens, s.prefill_chunk);
  }
  workload.short_prompts = false;
  workload.scores_in = 20;
  workload.max_tokens = 1 + static_cast<int32_t>(rng.Below(20));
  workload.beginnings.resize(1 + rng.Below(2));
}

void MakeBeginnings(Rng& rng, int32_t longest, Workload& workload) {
  if (workload.beginnings.empty()) workload.beginnings.resize(rng.Below(4));
  for (std::vector<TokenId>& beginning : workload.beginnings) {
    for (int32_t at = 0; at < longest; ++at) beginning.push_back(RandomToken(rng));
  }
}

// Often at the border of a chunk or a page, or one token beside it.
int32_t RandomPromptTokens(Rng& rng, const SchedulerOptions& s, bool short_prompts) {
  const int32_t longest = short_prompts ? s.max_model_len / 8 + 1 : s.max_model_len;
  auto tokens = static_cast<int32_t>(1 + rng.Below(longest));
  const uint32_t kind = rng.Below(4);
  const int32_t unit = kind == 0 ? s.prefill_chunk : kind == 1 ? kPageTokens : 1;
  tokens = tokens / unit * unit;
  if (unit > 1) tokens += static_cast<int32_t>(rng.Below(3)) - 1;
  return std::max(tokens, 1);
}

// As the beginning of some other prompts, as far as it goes, or a part of it.
void ShareBeginning(Rng& rng, const Workload& workload, std::vector<TokenId>& prompt) {
  const auto families = static_cast<uint32_t>(workload.beginnings.size());
  if (families == 0 || rng.Below(5) == 0) return;
  const std::vector<TokenId>& beginning = workload.beginnings[rng.Below(families)];
  size_t shared = std::min(prompt.size(), beginning.size());
  if (rng.Below(2) == 0) shared = rng.Below(static_cast<uint32_t>(shared) + 1);
  if (rng.Below(2) == 0) shared -= shared % kPageTokens;
  std::copy_n(beginning.begin(), shared, prompt.begin());
}

GenerateRequest RandomRequest(Rng& rng, const SchedulerOptions& options, const Workload& workload) {
  GenerateRequest request;
  request.prompt.resize(RandomPromptTokens(rng, options, workload.short_prompts));
  for (TokenId& token : request.prompt) token = RandomToken(rng);
  ShareBeginning(rng, workload, request.prompt);
  if (rng.Below(8) == 0) request.cache_salt = rng.Below(2) == 0 ? "salt" : "pepper";
  request.max_tokens = 1 + static_cast<int32_t>(rng.Below(workload.max_tokens));
  if (rng.Below(3) == 0) {
    request.min_tokens = static_cast<int32_t>(rng.Below(request.max_tokens + 1));
  }
  for (uint32_t n = rng.Below(workload.stop_tokens); n > 0; --n) {
    request.stop_tokens.push_back(RandomToken(rng));
  }
  if (rng.Below(workload.scores_in) == 0)
    request.prompt_logprobs = static_cast<int32_t>(rng.Below(3));
  if (rng.Below(4) == 0) request.sampling.logprobs = static_cast<int32_t>(rng.Below(3));
  return request;
}

void AddStop(Rng& rng, Scenario& scenario) {
  const int64_t last_ns = scenario.events.back().time_ns;
  switch (rng.Below(12)) {
    case 0:
      scenario.events.push_back({last_ns * rng.Below(1000) / 1000, Event::Kind::kStops, 0});
      break;
    case 1: scenario.stop_at_output = rng.Below(2000); break;
    default: break;
  }
}

}  // namespace

Scenario RandomScenario(Rng& rng, int requests) {
  Scenario scenario;
  scenario.options = RandomOptions(rng);
  Workload workload = RandomWorkload(rng);
  switch (rng.Below(6)) {
    case 0: Crowd(rng, scenario.options.scheduler, workload); break;
    case 1:
    case 2: Families(rng, scenario.options.scheduler, workload); break;
    default: break;
  }
  MakeBeginnings(rng, scenario.options.scheduler.max_model_len, workload);
  int64_t now_ns = 0;
  for (int i = 0; i < requests; ++i) {
    // Bursts, and pauses in which all may come to rest.
    if (rng.Below(3) == 0) now_ns += rng.Below(1u << workload.pause_bits);
    const size_t number = scenario.clients.size();
    ScenarioClient& client = scenario.clients.emplace_back();
    client.request = RandomRequest(rng, scenario.options.scheduler, workload);
    client.request.id = RequestId{number * 7 + 3};
    client.request.client = number % 3;
    if (workload.priorities) client.request.priority = static_cast<int32_t>(rng.Below(3)) - 1;
    scenario.events.push_back({now_ns, Event::Kind::kArrives, number});
    if (rng.Below(100) == 0) scenario.events.push_back({now_ns, Event::Kind::kForgets, 0});
    if (rng.Below(10) == 0) client.cancel_at_token = 1 + rng.Below(10);
    if (rng.Below(6) > 0) continue;
    const int64_t after_ns = rng.Below(1u << (20 + rng.Below(12)));
    scenario.events.push_back({now_ns + after_ns, Event::Kind::kCancels, number});
  }
  if (rng.Below(3) == 0) {
    scenario.blocks_one_in = 1 + rng.Below(20);
    scenario.block_bits = 20 + rng.Below(9);
  }
  AddStop(rng, scenario);
  if (rng.Below(4) > 0) scenario.options.scheduler.groups = 1 + static_cast<int32_t>(rng.Below(8));
  std::stable_sort(scenario.events.begin(), scenario.events.end(),
                   [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });
  return scenario;
}

}  // namespace fathom::simulation
