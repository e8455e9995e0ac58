#include "simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "base/check.h"
#include "engine/engine_loop.h"
#include "simulation/fake_device.h"
#include "simulation/saboteur.h"
#include "simulation/scenario.h"

namespace fathom {
namespace simulation {
namespace {

// A request of the simulation: what is asked, what must come, what came.
struct Client {
  ScenarioClient asked;
  RequestOutput expected;
  bool never_fits = false;
  bool accepted = false;
  bool cancel_sent = false;
  std::optional<FinishReason> finish;
  size_t tokens = 0;
};

class World {
 public:
  explicit World(const SimulationOptions& options)
      : fault_(options.fault),
        rng_(options.seed, /*stream=*/0),
        model_(options.seed),
        scenario_(RandomScenario(rng_, options.requests)),
        device_({.scheduler = scenario_.options.scheduler,
                 .seed = options.seed,
                 .fault = options.fault,
                 .complain = [this](std::string text) { Complain(std::move(text)); },
                 .trace = options.trace},
                &model_, &clock_),
        loop_(scenario_.options, &device_, &clock_,
              [this](std::vector<RequestOutput> outputs) { Take(std::move(outputs)); }) {
    for (ScenarioClient& asked : scenario_.clients) AddClient(std::move(asked));
  }

  Report Run() {
    // A request alone takes at most some 1,000 steps: chunks of one token, contexts of 500.
    const int64_t max_turns = 4000 * static_cast<int64_t>(clients_.size());
    for (int64_t turn = 0;; ++turn) {
      DeliverDue();
      const bool stopping = stopped_;
      const size_t delivered = next_event_;
      const bool busy = loop_.Step() || next_event_ > delivered;  // while its consumer blocked
      loop_.scheduler().CheckIntegrity();
      if (stopping && live_ > 0) Complain(fmt::format("{} requests live on after Stop()", live_));
      if (fault_ != Fault::kNone) Sabotage(loop_.scheduler(), fault_);
      if (!report_.complaints.empty()) break;
      if (busy && turn > max_turns) {
        Complain("it does not come to an end");
        break;
      }
      if (busy) continue;
      CheckAtRest();
      if (next_event_ == scenario_.events.size()) break;
      const int64_t ahead_ns = scenario_.events[next_event_].time_ns - clock_.NowNs();
      clock_.AdvanceNs(std::max<int64_t>(ahead_ns, 0));
    }
    return Finish();
  }

 private:
  void AddClient(ScenarioClient&& asked) {
    const SchedulerOptions& s = scenario_.options.scheduler;
    Client client{.asked = std::move(asked), .expected = {}};
    const GenerateRequest& request = client.asked.request;
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    const bool one = request.max_tokens == 1;  // which a prompt that fills the context may have
    const int64_t length =
        one ? prompt + 1 : std::min<int64_t>(prompt + request.max_tokens, s.max_model_len);
    client.never_fits = prompt > s.max_model_len - !one || PagesFor(length - 1) > s.num_pages;
    if (!client.never_fits) client.expected = model_.Answer(request, s.max_model_len);
    by_id_[request.id] = clients_.size();
    device_.Expect(request.id, request);
    clients_.push_back(std::move(client));
  }

  void DeliverDue() {
    while (next_event_ < scenario_.events.size() &&
           scenario_.events[next_event_].time_ns <= clock_.NowNs()) {
      Deliver(scenario_.events[next_event_++]);
    }
  }

  void Deliver(const Event& event) {
    Client& client = clients_[event.client];
    switch (event.kind) {
      case Event::Kind::kArrives: return Submit(client);
      case Event::Kind::kCancels:
        client.cancel_sent = true;
        return loop_.Cancel(client.asked.request.id);
      case Event::Kind::kStops: return Stop();
      case Event::Kind::kForgets: return loop_.ResetPrefixCache();
    }
  }

  void Submit(Client& client) {
    const SchedulerOptions& s = scenario_.options.scheduler;
    const int64_t capacity = scenario_.options.max_queue + int64_t{s.groups} * s.max_num_seqs;
    const bool room = !stopped_ && live_ < capacity;
    if (loop_.HasRoom(1) != room) Complain("HasRoom() is wrong");
    const Status status = loop_.Submit(client.asked.request);
    const StatusCode expected = client.never_fits ? StatusCode::kInvalidArgument
                                : stopped_        ? StatusCode::kUnavailable
                                : room            ? StatusCode::kOk
                                                  : StatusCode::kResourceExhausted;
    if (status.code() != expected) Complain("Submit(): " + status.ToString());
    client.accepted = status.ok();
    live_ += client.accepted;
    report_.refused_never_fit += status.code() == StatusCode::kInvalidArgument;
    report_.refused_stopping += status.code() == StatusCode::kUnavailable;
    report_.refused_full += status.code() == StatusCode::kResourceExhausted;
  }

  void Stop() {
    report_.stops += live_ > 0 && !stopped_;
    stopped_ = true;
    loop_.Stop();
  }

  void Take(std::vector<RequestOutput> outputs) {
    for (const RequestOutput& output : outputs) {
      Client& client = clients_[by_id_.at(output.id)];
      TakeOne(client, output);
      if (client.tokens >= client.asked.cancel_at_token && !client.cancel_sent) {
        client.cancel_sent = true;
        loop_.Cancel(output.id);
      }
    }
    if (++outputs_taken_ == scenario_.stop_at_output) Stop();
    if (scenario_.blocks_one_in == 0 || rng_.Below(scenario_.blocks_one_in) > 0) return;
    // Meanwhile the world goes on.
    ++report_.blocked_outputs;
    clock_.AdvanceNs(rng_.Below(1u << scenario_.block_bits));
    DeliverDue();
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
    if (first) CheckCached(client, output);
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

  void CheckCached(const Client& client, const RequestOutput& output) {
    const GenerateRequest& request = client.asked.request;
    const int32_t cached = output.cached_tokens;
    const bool may = scenario_.options.scheduler.prefix_caching && request.prompt_logprobs < 0;
    if (cached < 0 || (!may && cached > 0) || cached % kPageTokens != 0 ||
        cached >= static_cast<int32_t>(request.prompt.size())) {
      Complain(fmt::format("request {}: {} tokens from the cache", Raw(output.id), cached));
    }
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
    const bool cut = output.finish == FinishReason::kCancelled && (client.cancel_sent || stopped_);
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
    report_.cached_tokens = loop_.Stats().prefix_hits;
    report_.computed_tokens = loop_.Stats().prompt_tokens;
    report_.moved = device_.moved_requests();
    report_.late_answers = device_.late_answers();
    for (const FakeGroup& group : device_.groups()) {
      report_.drafts_accepted += group.memory().drafts_accepted;
      report_.drafts_rejected += group.memory().drafts_rejected;
      report_.rows_of_nothing += group.memory().rows_of_nothing;
    }
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
  Scenario scenario_;
  Report report_;
  FakeDevice device_;
  EngineLoop loop_;
  std::vector<Client> clients_;
  std::map<RequestId, size_t> by_id_;
  size_t next_event_ = 0;
  size_t outputs_taken_ = 0;
  int64_t live_ = 0;
  bool stopped_ = false;
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace

Report& Report::operator+=(const Report& other) {
  complaints.insert(complaints.end(), other.complaints.begin(), other.complaints.end());
  hash = hash * 31 + other.hash;
  for (int64_t Report::*count :
       {&Report::steps, &Report::preemptions, &Report::drafts_accepted, &Report::drafts_rejected,
        &Report::rows_of_nothing, &Report::moved, &Report::late_answers, &Report::cached_tokens,
        &Report::computed_tokens, &Report::stops, &Report::blocked_outputs, &Report::refused_full,
        &Report::refused_never_fit, &Report::refused_stopping, &Report::stopped,
        &Report::full_length, &Report::cancelled, &Report::failed}) {
    this->*count += other.*count;
  }
  return *this;
}

Report Simulate(const SimulationOptions& options) {
  return World(options).Run();
}

}  // namespace simulation
}  // namespace fathom
