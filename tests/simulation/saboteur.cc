#include "simulation/saboteur.h"

#include <utility>

#include "scheduler/scheduler.h"

namespace fathom {

using simulation::Fault;

struct PagePoolSaboteur {
  static void Free(PagePool& pool, PageId page) { pool.free_.push_back(page); }
  static void ForgetReference(PagePool& pool, PageId page) {
    --pool.pages_[static_cast<size_t>(Raw(page))].references;
  }
};

struct PrefixIndexSaboteur {
  // First pages of two chains, of which nothing but the content is to show the trade.
  static void TradePages(PrefixIndex& index) {
    std::optional<PrefixIndex::Entry>* first = nullptr;
    for (auto& entry : index.entries_) {
      if (!entry || entry->parent != PrefixIndex::kNoPage || entry->children > 0) continue;
      if (first == nullptr) {
        first = &entry;
        continue;
      }
      std::swap(index.by_key_.at((*first)->key), index.by_key_.at(entry->key));
      std::swap(*first, entry);
      return;
    }
  }
};

struct SchedulerSaboteur {
  static void BreakSequence(Scheduler& scheduler, Sequence& seq, Fault fault) {
    const bool runs = seq.state == SequenceState::kRunning;
    const bool preempted = seq.state == SequenceState::kWaiting;
    const bool resumes = preempted && seq.rows_in_flight == 0 && !seq.generated.empty();
    if (fault == Fault::kPagesFreedAtOnce && !runs) seq.pages.clear();
    if (fault == Fault::kDecodeTooEarly) seq.sampled_in = 0;
    if (fault == Fault::kTokenForgotten && resumes) seq.generated.pop_back();
    if (fault == Fault::kLogprobsRepeated && preempted) seq.prompt_planned = 0;
    const bool after_hit = runs && seq.prefilling() && seq.published > 0 &&
                           seq.prefilled == seq.published * kPageTokens;
    if (fault == Fault::kSharedPageWritten && after_hit) --seq.prefilled;
    if (fault == Fault::kPublishedUnwritten && runs) scheduler.Publish(seq, seq.prefill_end);
    if (fault != Fault::kFormsForgotten) return;
    if (runs) scheduler.WithdrawPromises(seq);  // they are by its keys
    for (PrefixPage& page : seq.prefix.pages) page.expanded = 0;
    seq.prefix.MakeKeys(scheduler.options_.prefix_hash);
  }

  static void BreakGroup(Scheduler::Group& group, Fault fault) {
    if (fault == Fault::kWrongPageShared) PrefixIndexSaboteur::TradePages(group.index);
    if (fault != Fault::kPageInUseEvicted && fault != Fault::kReferenceForgotten) return;
    for (const Sequence* seq : group.running) {
      for (const PageRef& page : seq->pages) {
        if (fault == Fault::kPageInUseEvicted && group.pool.kept(page.id())) {
          return PagePoolSaboteur::Free(group.pool, page.id());
        }
        if (fault == Fault::kReferenceForgotten && group.pool.holders(page.id()) > 1) {
          return PagePoolSaboteur::ForgetReference(group.pool, page.id());
        }
      }
    }
  }

  static void Break(Scheduler& scheduler, Fault fault) {
    if (fault == Fault::kStepLeftBehind) scheduler.last_with_rows_.reset();
    for (auto& [id, seq] : scheduler.sequences_) BreakSequence(scheduler, *seq, fault);
    for (Scheduler::Group& group : scheduler.groups_) BreakGroup(group, fault);
  }
};

void Sabotage(const Scheduler& honest, Fault fault) {
  SchedulerSaboteur::Break(const_cast<Scheduler&>(honest), fault);
}

}  // namespace fathom
