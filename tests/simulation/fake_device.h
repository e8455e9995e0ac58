// A device with delayed results that runs what is in flight in any order that the executor's
// contract allows, and models every cell of the page pool.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/executor.h"
#include "scheduler/scheduler.h"
#include "simulation/pretend_model.h"

namespace fathom::simulation {

// Things done wrong on purpose, to see that they are noticed.
enum class Fault {
  kNone,
  // Of the scheduler:
  kPagesFreedAtOnce,  // with steps still in flight
  kTokenForgotten,    // by a preemption
  kLogprobsRepeated,  // after a preemption
  // Of the device:
  kTokensTraded,  // between two rows of a step
  kPageIgnored,   // a row's new page
};

class FakeDevice final : public Executor {
 public:
  using Complain = std::function<void(std::string)>;

  // Borrows all; `complain` hears of every broken promise.
  FakeDevice(const SchedulerOptions& options, const PretendModel* model, VirtualClock* clock,
             uint64_t seed, Fault fault, Complain complain);

  void Submit(ExecutorStep step) override;
  StepResult Wait() override;

  // From now on no row of this request may come.
  void Ended(RequestId request) { ended_.insert(request); }
  uint64_t hash() const { return hash_; }  // of every plan and its time

 private:
  // What a write leaves in a position of a page.
  struct Cell {
    uint64_t life = 0;
    int32_t position = -1;
    TokenId token{-1};
    bool operator==(const Cell&) const = default;
  };
  struct Slot {
    SlotOpening opening;
    uint64_t life = 0;  // distinct for every opening
    std::vector<PageId> page_table;
    std::vector<TokenId> written;  // what its cells must hold
    TokenId last{-1};
    int32_t generated = 0;
  };
  struct Step {
    ExecutorStep work;
    StepResult result;
    std::vector<bool> done;  // [row]
    size_t rows_left = 0;
  };

  void CheckPlan(const ExecutorStep& step);
  void CheckRow(const StepRow& row, const ExecutorStep& step);
  void RunSomeRow();
  bool SlotIsBusy(size_t before_step, SlotId slot) const;
  void RunRow(Step& step, size_t row);
  void WriteTokens(Slot& slot, const StepRow& row);
  void CheckContext(const Slot& slot, const StepRow& row);
  RowResult ComputeRow(Slot& slot, const StepRow& row);
  void TradeTokens(StepResult& result);
  Cell& CellOf(const Slot& slot, int32_t position);

  const SchedulerOptions options_;
  const PretendModel* const model_;
  VirtualClock* const clock_;
  const Fault fault_;
  const Complain complain_;
  Rng rng_;
  std::vector<Cell> cells_;  // [page, offset]
  std::vector<Slot> slots_;
  std::deque<Step> steps_;
  std::unordered_set<RequestId> ended_;
  uint64_t lives_ = 0;
  uint64_t hash_ = 0xcbf29ce484222325;
};

uint64_t HashBytes(std::string_view bytes, uint64_t hash);  // FNV-1a

}  // namespace fathom::simulation
