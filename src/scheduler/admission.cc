// Scheduler: which of the requests that wait enter a slot, in which group, and with which pages.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace fathom {

// In turn; nobody passes one that finds no room, but for those that wait for a page which another
// request is computing.
void Scheduler::OpenSlots() {
  for (size_t i = 0; i < waiting_.size();) {
    Sequence& seq = *waiting_[i];
    if (seq.rows_in_flight > 0) return;
    if (Awaits(seq)) {
      ++i;
      continue;
    }
    const Entrance entrance = BestEntrance(seq, /*with_tokens=*/true);
    if (entrance.group == nullptr) {
      const Group* group = BestEntrance(seq, /*with_tokens=*/false).group;
      if (group != nullptr) prefill_left_out_ |= !group->prefills;
      return;
    }
    if (entrance.waits()) {
      seq.awaited_group = entrance.group->number;
      seq.awaited = seq.prefix.pages[static_cast<size_t>(entrance.cached)].key;
      ++i;
      continue;
    }
    OpenSlot(entrance, seq);
    PlanChunk(*entrance.group, seq);
  }
}

// Of the request whose turn it is, if the step had tokens for all.
Scheduler::Entrance Scheduler::EntranceOfHead() {
  for (const Sequence* seq : waiting_) {
    if (seq->rows_in_flight > 0) break;
    if (!Awaits(*seq)) return BestEntrance(*seq, /*with_tokens=*/false);
  }
  return {};
}

// Where it finds a slot, its pages and, if `with_tokens`, the tokens of its first row in this step,
// and leaves the most room. What it can share there counts as room: a whole request's worth as much
// as a quarter of the group.
Scheduler::Entrance Scheduler::BestEntrance(const Sequence& seq, bool with_tokens) {
  const int64_t quarter = int64_t{options_.num_pages} * options_.max_num_batched_tokens / 4;
  Entrance best;
  int64_t most = 0;
  for (Group& group : groups_) {
    if (group.free_slots.empty()) continue;
    const Entrance entrance = EntranceOf(seq, group);
    if (entrance.pages_left < 0) continue;
    if (with_tokens && group.tokens_left < entrance.tokens) continue;
    const int64_t room = RoomBehind(entrance) + quarter * entrance.shared / PagesFor(seq.length());
    if (best.group != nullptr && room <= most) continue;
    best = entrance;
    most = room;
  }
  return best;
}

Scheduler::Entrance Scheduler::EntranceOf(const Sequence& seq, Group& group) const {
  // The last token is always computed, and its page written. Who wants log-probabilities of a
  // prompt has all of it computed.
  const bool shares = seq.params->prompt_logprobs < 0;
  const int32_t most = shares ? std::min(seq.prefix.size(), (seq.length() - 1) / kPageTokens) : 0;
  Entrance entrance{.group = &group};
  entrance.cached = entrance.shared = group.index.Find(seq.prefix, most);
  while (entrance.shared < most &&
         group.promised.contains(seq.prefix.pages[static_cast<size_t>(entrance.shared)].key)) {
    ++entrance.shared;
  }
  const int32_t taken =
      PagesOf(seq, seq.length()) - entrance.cached + group.index.Idle(seq.prefix, entrance.cached);
  // A page for each running request is not free, or its next decode would preempt the newcomer.
  entrance.pages_left =
      group.pool.free_pages() - taken - static_cast<int64_t>(group.running.size());
  if (!entrance.waits()) {
    entrance.tokens = PrefillTokens(seq, entrance.cached * kPageTokens, seq.length());
  }
  return entrance;
}

// The smaller of two shares: of the group's pages, and of the step's tokens. Both are multiplied by
// the number of pages and of tokens, which are the same in all groups.
int64_t Scheduler::RoomBehind(const Entrance& entrance) const {
  const int64_t tokens = entrance.group->tokens_left - entrance.tokens;
  return std::min(entrance.pages_left * options_.max_num_batched_tokens,
                  tokens * options_.num_pages);
}

void Scheduler::OpenSlot(const Entrance& entrance, Sequence& seq) {
  Group& group = *entrance.group;
  std::erase(waiting_, &seq);
  turn_ = std::max(turn_, seq.turn);
  const auto later =
      std::upper_bound(group.running.begin(), group.running.end(), &seq, ComesBefore);
  group.running.insert(later, &seq);
  seq.state = SequenceState::kRunning;
  seq.group = group.number;
  seq.slot = group.free_slots.back();
  group.free_slots.pop_back();
  seq.prefill_end = seq.length();
  seq.pages_planned = 0;
  TakePages(entrance, seq);
  group.part.openings.push_back({.slot = seq.slot,
                                 .request = seq.id,
                                 .params = seq.params,
                                 .generated = seq.generated,
                                 .length = seq.prefilled,
                                 .final_length = seq.final_length});
}

}  // namespace fathom
