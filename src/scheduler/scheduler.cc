#include "scheduler/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace fathom {
Status Validate(const SchedulerOptions& options) {
  const auto at_least = [](const char* name, int64_t value, int64_t least) -> Status {
    if (value >= least) return {};
    return InvalidArgument("{} {}: it must be at least {}", name, value, least);
  };
  TRY(at_least("data-parallel groups:", options.groups, 1));
  TRY(at_least("--max-num-seqs", options.max_num_seqs, 1));
  TRY(at_least("--prefill-chunk", options.prefill_chunk, 1));
  TRY(at_least("pages of the KV cache:", options.num_pages, 1));
  TRY(at_least("--max-model-len", options.max_model_len, 2));
  TRY(at_least("pipeline stages:", options.stages, 1));
  TRY(at_least("steps in flight:", options.depth, options.stages == 1 ? 1 : options.stages + 1));
  TRY(at_least("absorbed_limit:", options.absorbed_limit, 0));
  TRY(at_least("drafts of a decode:", options.max_drafts, 0));
  TRY(at_least("lookahead of drafts:", options.lookahead, 0));
  if (options.max_num_batched_tokens < std::max(options.prefill_chunk, options.max_num_seqs)) {
    return InvalidArgument(
        "--max-num-batched-tokens {} is too small: a step must hold one prefill chunk of {} tokens "
        "(--prefill-chunk), and a token for each of {} requests (--max-num-seqs)",
        options.max_num_batched_tokens, options.prefill_chunk, options.max_num_seqs);
  }
  return {};
}

Scheduler::Group::Group(int32_t number, const SchedulerOptions& options)
    : number(number), pool(options.num_pages), index(&pool) {
  for (int32_t slot = options.max_num_seqs - 1; slot >= 0; --slot) {
    free_slots.push_back(SlotId{slot});
  }
}

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), drafts_(options.max_drafts) {
  const Status valid = Validate(options);
  CHECK(valid.ok(), "{}", valid.message());
  for (int32_t number = 0; number < options.groups; ++number) groups_.emplace_back(number, options);
}

Scheduler::~Scheduler() = default;

void Scheduler::SetDrafts(int32_t drafts) {
  CHECK(drafts >= 0 && drafts <= options_.max_drafts, "{} drafts, at most {}", drafts,
        options_.max_drafts);
  drafts_ = drafts;
}

Status Scheduler::CheckFits(int64_t prompt_tokens, int64_t max_tokens) const {
  if (prompt_tokens < 1) return InvalidArgument("the prompt is empty: it needs at least one token");
  if (max_tokens < 1) return InvalidArgument("max_tokens is {}: it must be 1 or more", max_tokens);
  // The last token is sampled, never computed: one more than the context holds.
  if (prompt_tokens + (max_tokens > 1) > options_.max_model_len) {
    return InvalidArgument(
        "the prompt has {} tokens, and the model's context holds {}, prompt and answer together: "
        "shorten the prompt to at most {} tokens",
        prompt_tokens, options_.max_model_len, options_.max_model_len - (max_tokens > 1));
  }
  const int64_t length = FinalLength(prompt_tokens, max_tokens);
  const int32_t pages = PagesFor(length - 1);
  if (pages > options_.num_pages) {
    return InvalidArgument(
        "{} prompt tokens and {} to generate need {} KV cache pages of {} tokens, and there are "
        "{}: ask for fewer tokens, or give the cache more memory",
        prompt_tokens, length - prompt_tokens, pages, kPageTokens, options_.num_pages);
  }
  return {};
}

int64_t Scheduler::FinalLength(int64_t prompt_tokens, int64_t max_tokens) const {
  return prompt_tokens + std::clamp<int64_t>(options_.max_model_len - prompt_tokens, 1, max_tokens);
}

// One after the client's last that waits; never before what has entered, nor before another's
// request of the same turn that came earlier, so that nobody starves.
uint64_t Scheduler::TurnOf(uint64_t client) const {
  const auto last =
      std::find_if(waiting_.rbegin(), waiting_.rend(),
                   [client](const Sequence* waiting) { return waiting->client == client; });
  return std::max(turn_, last == waiting_.rend() ? 0 : (*last)->turn) + 1;
}

void Scheduler::Add(RequestId id, std::shared_ptr<const RequestParams> params, uint64_t client,
                    const std::string& cache_salt, int32_t priority) {
  const Status fits = CheckFits(static_cast<int64_t>(params->prompt.size()), params->max_tokens);
  CHECK(fits.ok(), "request {}: {}", Raw(id), fits.message());
  auto seq = std::make_unique<Sequence>();
  seq->id = id;
  seq->params = std::move(params);
  seq->prefix = ChainOf(*seq->params, cache_salt);
  seq->client = client;
  seq->priority = priority;
  seq->turn = TurnOf(client);
  seq->arrival = next_arrival_++;
  seq->final_length =
      static_cast<int32_t>(FinalLength(seq->prompt_size(), seq->params->max_tokens));
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), seq.get(), ComesBefore),
                  seq.get());
  const bool added = sequences_.emplace(id, std::move(seq)).second;
  CHECK(added, "request {} is there already", Raw(id));
}

bool Scheduler::Cancel(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->state == SequenceState::kEnded) return false;
  End(*found->second);
  ReleaseIfDrained(*found->second);
  return true;
}

const Sequence& Scheduler::sequence(RequestId id) const {
  const auto found = sequences_.find(id);
  CHECK(found != sequences_.end() && found->second->state != SequenceState::kEnded,
        "request {} is unknown", Raw(id));
  return *found->second;
}

int32_t Scheduler::running(int32_t group) const {
  return static_cast<int32_t>(groups_[static_cast<size_t>(group)].running.size());
}

int32_t Scheduler::running() const {
  int32_t running = 0;
  for (const Group& group : groups_) running += this->running(group.number);
  return running;
}

int32_t Scheduler::free_pages(int32_t group) const {
  return groups_[static_cast<size_t>(group)].pool.free_pages();
}

int32_t Scheduler::free_pages() const {
  int32_t pages = 0;
  for (const Group& group : groups_) pages += free_pages(group.number);
  return pages;
}

std::vector<RowEffect> Scheduler::Apply(uint64_t step, std::span<const StepRow> rows,
                                        std::span<const RowOutcome> outcomes) {
  CHECK(!in_flight_.empty() && in_flight_.front() == step, "step {} is not the oldest", step);
  CHECK(outcomes.size() == rows.size(), "{} outcomes of {} rows", outcomes.size(), rows.size());
  in_flight_.pop_front();
  std::vector<RowEffect> effects(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const StepRow& row = rows[i];
    const auto found = sequences_.find(row.request);
    CHECK(found != sequences_.end(), "request {} has left with a row in flight", Raw(row.request));
    Sequence& seq = *found->second;
    --seq.rows_in_flight;
    seq.samples_in_flight -= row.samples;
    seq.tokens_in_flight -= row.logit_vectors();
    if (seq.state != SequenceState::kEnded) {
      effects[i].counts = true;
      effects[i].end = Advance(seq, row, outcomes[i]);
      effects[i].cached_tokens = seq.cached_tokens;
      effects[i].preemptions = seq.preemptions;
      const bool written = !row.is_decode() && !outcomes[i].failed;
      if (written) Publish(seq, row.begin + row.num_tokens());
      const bool decoded = row.is_decode() && !outcomes[i].failed;
      if (options_.prefix_caching && options_.reuse_decoded && decoded) {
        ExtendChain(seq);
        Publish(seq, seq.length() - 1);
      }
      if (effects[i].end) End(seq);
    }
    ReleaseIfDrained(seq);
  }
  return effects;
}

std::optional<SequenceEnd> Scheduler::Advance(Sequence& seq, const StepRow& row,
                                              const RowOutcome& outcome) {
  const std::vector<TokenId>& tokens = outcome.tokens;
  const size_t most = static_cast<size_t>(row.logit_vectors());
  const size_t least = row.samples && !outcome.failed ? 1 : 0;
  CHECK(tokens.size() >= least && tokens.size() <= most,
        "request {}: {} tokens of a row that brings {} to {}", Raw(seq.id), tokens.size(), least,
        most);
  std::optional<SequenceEnd> end;
  for (const TokenId token : tokens) {
    CHECK(!end, "request {}: the device went on after its end", Raw(seq.id));
    seq.generated.push_back(token);
    ++generated_tokens_;
    const auto& stops = seq.params->stop_tokens;
    if (static_cast<int64_t>(seq.generated.size()) > seq.params->min_tokens &&
        std::find(stops.begin(), stops.end(), token) != stops.end()) {
      end = SequenceEnd::kStop;
    } else if (seq.length() == seq.final_length) {
      end = SequenceEnd::kLength;
    }
  }
  // What fails behind its last token has ended.
  return outcome.failed && !end ? SequenceEnd::kFailed : end;
}

void Scheduler::End(Sequence& seq) {
  if (seq.state == SequenceState::kRunning) Leave(seq);
  if (seq.state == SequenceState::kWaiting) std::erase(waiting_, &seq);
  seq.state = SequenceState::kEnded;
}

void Scheduler::Preempt(Sequence& seq) {
  ++preemptions_;
  ++seq.preemptions;
  Leave(seq);
  seq.state = SequenceState::kWaiting;
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), &seq, ComesBefore), &seq);
  ReleaseIfDrained(seq);
}

void Scheduler::Leave(Sequence& seq) {
  Group& group = GroupOf(seq);
  WithdrawPromises(seq);
  std::erase(group.running, &seq);
  group.leaving.push_back(&seq);
}

// Slot and pages are free again when no step in flight can touch them. An ended sequence dies.
void Scheduler::ReleaseIfDrained(Sequence& seq) {
  if (seq.rows_in_flight > 0 || seq.state == SequenceState::kRunning) return;
  if (seq.group >= 0) {
    Group& group = GroupOf(seq);
    std::erase(group.leaving, &seq);
    group.free_slots.push_back(seq.slot);
    while (!seq.pages.empty()) seq.pages.pop_back();  // last to first, as the index requires
    seq.slot = SlotId{-1};
    seq.group = -1;
  }
  if (seq.state != SequenceState::kEnded) return;
  const RequestId id = seq.id;
  sequences_.erase(id);
}

void Scheduler::CheckIntegrity() const {
  CHECK(std::is_sorted(waiting_.begin(), waiting_.end(), ComesBefore));
  size_t waiting = 0, in_slots = 0, of_groups = 0;
  for (const auto& [id, seq] : sequences_) {
    CheckSequence(*seq);
    waiting += seq->state == SequenceState::kWaiting;
    in_slots += seq->group >= 0;
  }
  CHECK(waiting == waiting_.size());
  for (const Group& group : groups_) {
    CheckGroup(group);
    of_groups += group.running.size() + group.leaving.size();
  }
  CHECK(in_slots == of_groups, "{} requests in slots, and groups have {}", in_slots, of_groups);
  CHECK(!sequences_.empty() || in_flight_.empty());
}

// Each slot of the group is free, or one of its requests has it; each reference to a page is one of
// its requests', or the index's.
void Scheduler::CheckGroup(const Group& group) const {
  group.pool.CheckIntegrity();
  group.index.CheckIntegrity();
  const auto& running = group.running;
  CHECK(std::is_sorted(running.begin(), running.end(), ComesBefore));
  // A request that waits may come before others that run, if these have another group or a later
  // priority, or if it waits, or has waited, for another's pages.
  CHECK(options_.groups > 1 || options_.prefix_caching || running.empty() || waiting_.empty() ||
        waiting_.front()->priority < running.back()->priority ||
        ComesBefore(running.back(), waiting_.front()));
  std::vector<bool> slot_taken(static_cast<size_t>(options_.max_num_seqs));
  const auto take_slot = [&](SlotId slot) {
    CHECK(Raw(slot) >= 0 && Raw(slot) < options_.max_num_seqs && !slot_taken[Raw(slot)],
          "slot {} of group {} is lost or taken twice", Raw(slot), group.number);
    slot_taken[Raw(slot)] = true;
  };
  std::vector<int32_t> holders(static_cast<size_t>(options_.num_pages));
  const auto take = [&](const Sequence& seq, bool runs) {
    CHECK(seq.group == group.number && (seq.state == SequenceState::kRunning) == runs);
    take_slot(seq.slot);
    for (const PageRef& page : seq.pages) ++holders[static_cast<size_t>(Raw(page.id()))];
  };
  for (SlotId slot : group.free_slots) take_slot(slot);
  for (const Sequence* seq : running) take(*seq, true);
  for (const Sequence* seq : group.leaving) take(*seq, false);
  CHECK(std::find(slot_taken.begin(), slot_taken.end(), false) == slot_taken.end());
  for (int32_t page = 0; page < options_.num_pages; ++page) {
    const int32_t held = holders[static_cast<size_t>(page)];
    CHECK(group.pool.holders(PageId{page}) == held,
          "group {}: {} requests hold page {}, which counts {}", group.number, held, page,
          group.pool.holders(PageId{page}));
  }
  for (const auto& [key, seq] : group.promised) {
    CHECK(seq->state == SequenceState::kRunning && seq->group == group.number && seq->publishes,
          "a page of group {} is promised by nobody who runs", group.number);
  }
}

void Scheduler::CheckSequence(const Sequence& seq) const {
  const bool in_slot = seq.slot != SlotId{-1};
  CHECK(in_slot == (seq.state == SequenceState::kRunning || seq.rows_in_flight > 0));
  CHECK(in_slot == (seq.group >= 0));
  CHECK(in_slot || seq.pages.empty());
  CHECK(seq.rows_in_flight >= seq.samples_in_flight && seq.samples_in_flight >= 0);
  CHECK(seq.tokens_in_flight >= seq.samples_in_flight);
  CHECK(seq.tokens_in_flight <= int64_t{seq.samples_in_flight} * (1 + options_.max_drafts));
  CHECK(seq.rows_in_flight <= static_cast<int64_t>(in_flight_.size()));
  if (seq.state == SequenceState::kEnded) return;
  // A row may turn out to be one too many only where the rows before it may bring several tokens.
  CHECK(options_.max_drafts > 0 || seq.length() + seq.samples_in_flight <= seq.final_length);
  if (seq.state == SequenceState::kRunning) {
    CHECK(seq.awaited_group < 0 && seq.published <= seq.prefix.size());
    const int32_t reserved = std::max(seq.planned_most(), seq.prefill_end);
    const auto pages = static_cast<int64_t>(seq.pages.size());
    CHECK(PagesOf(seq, reserved) <= pages && pages <= PagesFor(seq.final_length - 1));
    CHECK(seq.fully_planned() || seq.planned_least() <= seq.planned_most());
  }
}

}  // namespace fathom
