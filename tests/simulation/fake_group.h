// The device of one group: it has the group's part of each step, in the order that the executor's
// contract allows, and notices what the group was not promised.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/rng.h"
#include "engine/executor.h"
#include "scheduler/scheduler.h"
#include "simulation/fake_slot.h"

namespace fathom::simulation {

// What is known of all requests, whatever their group.
struct KnownRequests {
  std::map<RequestId, RequestParams> asked;
  std::unordered_set<RequestId> ended;      // no row of these may come
  std::map<RequestId, int> rows_in_flight;  // in all groups
  std::map<RequestId, const void*> group;   // the last one whose slot it entered
  int64_t moved = 0;                        // entered another one after a preemption
};

class FakeGroup {
 public:
  FakeGroup(FakeMemory memory, KnownRequests* requests);

  // Takes its part of the next step, as a rank gets it.
  void Take(StepPlan plan);
  // Runs a row that may come next, if there is one: any in flight, but for the order of a slot's
  // own rows. It knows nothing of other groups, which may be steps ahead or behind.
  void RunSomeRow(Rng& rng);
  bool finished_oldest() const { return steps_.front().rows_left == 0; }
  // Of the oldest step. REQUIRES: finished_oldest().
  std::vector<RowResult> TakeOldest();

  const FakeMemory& memory() const { return memory_; }

 private:
  // Who holds a slot, as the plans so far have it.
  struct Holder {
    RequestId request{};
    std::shared_ptr<const RequestParams> params;
    int32_t known = 0;        // tokens on entering the slot
    int32_t next_begin = 0;   // of its next row of known tokens
    int32_t samples = 0;      // rows that bring a token at least
    uint64_t sampled_in = 0;  // the step of the last of them
    int32_t final_length = 0;
  };
  struct Step {
    StepPlan plan;
    std::vector<RowResult> results;
    std::vector<bool> done;  // [row]
    size_t rows_left = 0;
  };

  void Complain(std::string text) { memory_.complain(std::move(text)); }
  void CheckPlan(const StepPlan& plan);
  void CheckOpening(const SlotOpening& opening);
  void CheckRow(uint64_t step, const StepRow& row);
  void CheckKnownRow(const StepRow& row, Holder& holder);
  bool IsInFlight(const std::function<bool(const StepRow&)>& is) const;
  bool SlotIsBusy(size_t before_step, SlotId slot) const;
  void RunRow(Step& step, size_t row);

  FakeMemory memory_;
  KnownRequests* const requests_;
  std::vector<FakeSlot> slots_;
  std::vector<Holder> holders_;  // [slot]
  std::deque<Step> steps_;
};

// Where a row stands in its step: expanded ones by length, absorbed ones by length, decodes.
std::pair<int, int32_t> PlaceOf(const StepRow& row);

}  // namespace fathom::simulation
