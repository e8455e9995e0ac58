#include "simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/check.h"
#include "engine/engine_loop.h"

namespace fathom {

// Reaches into the scheduler to do what it must not.
struct SchedulerSaboteur {
  static void Break(const Scheduler& honest, simulation::Fault fault) {
    auto& scheduler = const_cast<Scheduler&>(honest);
    for (auto& [id, seq] : scheduler.sequences_) {
      const bool preempted = seq->state == SequenceState::kWaiting;
      const bool resumes = preempted && seq->rows_in_flight == 0 && !seq->generated.empty();
      if (fault == simulation::Fault::kPagesFreedAtOnce && seq->state != SequenceState::kRunning) {
        seq->pages.clear();
      }
      if (fault == simulation::Fault::kTokenForgotten && resumes) seq->generated.pop_back();
      if (fault == simulation::Fault::kLogprobsRepeated && preempted) seq->prompt_planned = 0;
    }
  }
};

namespace simulation {
namespace {

struct Event {
  int64_t time_ns = 0;
  size_t request = 0;
  bool cancels = false;
};

// A request of the simulation: what is asked, what must come, what came.
struct Client {
  GenerateRequest request;
  RequestOutput expected;
  size_t cancel_at_token = ~size_t{0};  // from inside the output callback
  bool never_fits = false;
  bool accepted = false;
  bool cancel_sent = false;
  std::optional<FinishReason> finish;
  size_t tokens = 0;
  size_t prompt_logprobs = 0;
};

// What a seed's requests have in common.
struct Workload {
  bool short_prompts = false;
  int32_t max_tokens = 40;   // of a request, at most
  uint32_t stop_tokens = 4;  // of a request, fewer than this
  uint32_t pause_bits = 20;  // between bursts at most 2^pause_bits ns
};

Workload RandomWorkload(Rng& rng) {
  Workload workload;
  workload.short_prompts = rng.Below(2) == 0;
  workload.max_tokens = rng.Below(2) == 0 ? 500 : 40;
  workload.stop_tokens = 1 + rng.Below(3);
  workload.pause_bits = 20 + rng.Below(11);
  return workload;
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
  const int32_t plenty = longest * (rng.Below(2) == 0 ? 2 : s.max_num_seqs + 1);
  s.num_pages = std::max(1, longest - 1 + static_cast<int32_t>(rng.Below(plenty)));
  s.depth = 1 + static_cast<int32_t>(rng.Below(3));
  options.max_queue = static_cast<int32_t>(rng.Below(rng.Below(4) > 0 ? 300 : 20));
  options.vocab_size = kVocab;
  return options;
}

class World {
 public:
  World(uint64_t seed, int requests, Fault fault)
      : fault_(fault),
        rng_(seed, /*stream=*/0),
        model_(seed),
        options_(RandomOptions(rng_)),
        workload_(RandomWorkload(rng_)),
        device_(options_.scheduler, &model_, &clock_, seed, fault,
                [this](std::string text) { Complain(std::move(text)); }),
        loop_(options_, &device_, &clock_,
              [this](std::vector<RequestOutput> outputs) { Take(std::move(outputs)); }) {
    int64_t now_ns = 0;
    for (int i = 0; i < requests; ++i) {
      // Bursts, and pauses in which all may come to rest.
      if (rng_.Below(3) == 0) now_ns += rng_.Below(1u << workload_.pause_bits);
      AddClient(now_ns);
    }
    std::stable_sort(events_.begin(), events_.end(),
                     [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });
  }

  Report Run() {
    // A request alone takes at most some 1,000 steps: chunks of one token, contexts of 500.
    const int64_t max_turns = 4000 * static_cast<int64_t>(clients_.size());
    size_t next_event = 0;
    for (int64_t turn = 0;; ++turn) {
      while (next_event < events_.size() && events_[next_event].time_ns <= clock_.NowNs()) {
        Deliver(events_[next_event++]);
      }
      const bool busy = loop_.Step();
      loop_.scheduler().CheckIntegrity();
      if (fault_ != Fault::kNone) SchedulerSaboteur::Break(loop_.scheduler(), fault_);
      if (!report_.complaints.empty()) break;
      if (busy && turn > max_turns) {
        Complain("it does not come to an end");
        break;
      }
      if (busy) continue;
      CheckAtRest();
      if (next_event == events_.size()) break;
      clock_.AdvanceNs(events_[next_event].time_ns - clock_.NowNs());
    }
    return Finish();
  }

 private:
  void AddClient(int64_t now_ns) {
    const SchedulerOptions& s = options_.scheduler;
    Client client;
    GenerateRequest& request = client.request;
    request.id = RequestId{clients_.size() * 7 + 3};
    request.prompt.resize(PromptTokens());
    for (TokenId& token : request.prompt) token = TokenId{static_cast<int32_t>(rng_.Below(kVocab))};
    request.max_tokens = 1 + static_cast<int32_t>(rng_.Below(workload_.max_tokens));
    if (rng_.Below(4) == 0) {
      request.min_tokens = static_cast<int32_t>(rng_.Below(request.max_tokens + 1));
    }
    for (uint32_t n = rng_.Below(workload_.stop_tokens); n > 0; --n) {
      request.stop_tokens.push_back(TokenId{static_cast<int32_t>(rng_.Below(kVocab))});
    }
    if (rng_.Below(3) == 0) request.prompt_logprobs = static_cast<int32_t>(rng_.Below(3));
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    const bool one = request.max_tokens == 1;  // which a prompt that fills the context may have
    const int64_t length =
        one ? prompt + 1 : std::min<int64_t>(prompt + request.max_tokens, s.max_model_len);
    client.never_fits = prompt > s.max_model_len - !one || PagesFor(length - 1) > s.num_pages;
    if (!client.never_fits) client.expected = model_.Answer(request, s.max_model_len);
    if (rng_.Below(10) == 0) client.cancel_at_token = 1 + rng_.Below(10);
    events_.push_back({now_ns, clients_.size(), false});
    if (rng_.Below(6) == 0) {
      const int64_t after_ns = rng_.Below(1u << (20 + rng_.Below(12)));
      events_.push_back({now_ns + after_ns, clients_.size(), true});
    }
    by_id_[request.id] = clients_.size();
    clients_.push_back(std::move(client));
  }

  // Often at the border of a chunk or a page, or one token beside it.
  int32_t PromptTokens() {
    const SchedulerOptions& s = options_.scheduler;
    const int32_t longest = workload_.short_prompts ? s.max_model_len / 8 + 1 : s.max_model_len;
    auto tokens = static_cast<int32_t>(1 + rng_.Below(longest));
    const uint32_t kind = rng_.Below(4);
    const int32_t unit = kind == 0 ? s.prefill_chunk : kind == 1 ? kPageTokens : 1;
    tokens = tokens / unit * unit;
    if (unit > 1) tokens += static_cast<int32_t>(rng_.Below(3)) - 1;
    return std::max(tokens, 1);
  }

  void Deliver(const Event& event) {
    Client& client = clients_[event.request];
    if (event.cancels) {
      client.cancel_sent = true;
      loop_.Cancel(client.request.id);
      return;
    }
    const int64_t capacity = options_.max_queue + options_.scheduler.max_num_seqs;
    const bool room = live_ < capacity;
    if (loop_.HasRoom(1) != room) Complain("HasRoom() is wrong");
    const Status status = loop_.Submit(client.request);
    const StatusCode expected = client.never_fits ? StatusCode::kInvalidArgument
                                : room            ? StatusCode::kOk
                                                  : StatusCode::kResourceExhausted;
    if (status.code() != expected) Complain("Submit(): " + status.ToString());
    client.accepted = status.ok();
    live_ += client.accepted;
    report_.refused_never_fit += status.code() == StatusCode::kInvalidArgument;
    report_.refused_full += status.code() == StatusCode::kResourceExhausted;
  }

  void Take(std::vector<RequestOutput> outputs) {
    for (const RequestOutput& output : outputs) {
      Client& client = clients_[by_id_.at(output.id)];
      TakeOne(client, output);
      if (client.tokens >= client.cancel_at_token && !client.cancel_sent) {
        client.cancel_sent = true;
        loop_.Cancel(output.id);
      }
    }
  }

  void TakeOne(Client& client, const RequestOutput& output) {
    const auto complain = [&](std::string_view what) {
      Complain(fmt::format("request {}, after {} tokens: {}", Raw(output.id), client.tokens, what));
    };
    if (!client.accepted) return complain("an output, and it was refused");
    if (client.finish) return complain("an output after the last one");
    const bool first = client.tokens == 0 && !output.tokens.empty();
    for (const GeneratedToken& token : output.tokens) {
      hash_ =
          HashBytes(fmt::format("{} {} {}", clock_.NowNs(), Raw(output.id), Raw(token.id)), hash_);
      if (client.tokens >= client.expected.tokens.size() ||
          token.id != client.expected.tokens[client.tokens].id) {
        return complain("a wrong token");
      }
      ++client.tokens;
    }
    if (!first && !output.prompt_logprobs.empty()) complain("prompt_logprobs twice");
    if (first) CheckPromptLogprobs(client, output);
    if (output.finish) TakeLast(client, output);
  }

  void CheckPromptLogprobs(const Client& client, const RequestOutput& output) {
    const auto& expected = client.expected.prompt_logprobs;
    const bool equal = std::equal(expected.begin(), expected.end(), output.prompt_logprobs.begin(),
                                  output.prompt_logprobs.end(), [](const auto& a, const auto& b) {
                                    return a.logprob == b.logprob;
                                  });
    if (!equal) Complain(fmt::format("request {}: wrong prompt_logprobs", Raw(output.id)));
  }

  void TakeLast(Client& client, const RequestOutput& output) {
    client.finish = output.finish;
    --live_;
    hash_ = HashBytes(fmt::format("end {}", static_cast<int>(*output.finish)), hash_);
    device_.Ended(output.id);
    switch (*output.finish) {
      case FinishReason::kStop: ++report_.stopped; break;
      case FinishReason::kLength: ++report_.full_length; break;
      case FinishReason::kCancelled: ++report_.cancelled; break;
      case FinishReason::kError: ++report_.failed; break;
    }
    const bool whole =
        output.finish == client.expected.finish && client.tokens == client.expected.tokens.size();
    const bool cut = output.finish == FinishReason::kCancelled && client.cancel_sent;
    if (!whole && !cut) Complain(fmt::format("request {} ended wrongly", Raw(output.id)));
    if ((output.finish == FinishReason::kError) == output.error.ok()) {
      Complain(fmt::format("request {}: an error without its reason", Raw(output.id)));
    }
  }

  void CheckAtRest() {
    const EngineStats stats = loop_.Stats();
    if (stats.free_pages != stats.total_pages) Complain("pages leaked");
    if (stats.running != 0 || stats.waiting != 0) Complain("requests are left over");
    if (live_ != 0) Complain(fmt::format("{} requests never ended", live_));
  }

  Report Finish() {
    if (!report_.complaints.empty()) {
      loop_.Stop();
      while (loop_.Step()) {
      }
    }
    report_.steps = loop_.Stats().steps;
    report_.preemptions = loop_.Stats().preemptions;
    report_.hash = hash_ ^ device_.hash();
    return std::move(report_);
  }

  void Complain(std::string text) {
    if (report_.complaints.size() < 5) {
      report_.complaints.push_back(
          fmt::format("at {:.3f} ms: {}", static_cast<double>(clock_.NowNs()) * 1e-6, text));
    }
  }

  const Fault fault_;
  Rng rng_;
  VirtualClock clock_;
  const PretendModel model_;
  const EngineOptions options_;
  const Workload workload_;
  Report report_;
  FakeDevice device_;
  EngineLoop loop_;
  std::vector<Client> clients_;
  std::map<RequestId, size_t> by_id_;
  std::vector<Event> events_;
  int64_t live_ = 0;
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace

Report& Report::operator+=(const Report& other) {
  complaints.insert(complaints.end(), other.complaints.begin(), other.complaints.end());
  hash = hash * 31 + other.hash;
  steps += other.steps;
  preemptions += other.preemptions;
  refused_full += other.refused_full;
  refused_never_fit += other.refused_never_fit;
  stopped += other.stopped;
  full_length += other.full_length;
  cancelled += other.cancelled;
  failed += other.failed;
  return *this;
}

Report Simulate(uint64_t seed, int requests, Fault fault) {
  return World(seed, requests, fault).Run();
}

}  // namespace simulation
}  // namespace fathom
