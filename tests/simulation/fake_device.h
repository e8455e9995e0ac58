// A device with delayed results that runs what is in flight in any order that the executor's
// contract allows, and models every cell of the page pool.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/executor.h"
#include "scheduler/scheduler.h"
#include "simulation/fake_slot.h"

namespace fathom::simulation {

struct FakeDeviceOptions {
  SchedulerOptions scheduler;
  uint64_t seed = 0;
  Fault fault = Fault::kNone;
  std::function<void(std::string)> complain;           // hears of every broken promise
  std::function<void(const std::string&)> trace = {};  // if set, of every plan and result
};

class FakeDevice final : public Executor {
 public:
  FakeDevice(FakeDeviceOptions options, const PretendModel* model, VirtualClock* clock);

  void Submit(StepPlan plan) override;
  StepResult Wait() override;

  // What a request asks, before any row of it comes.
  void Expect(RequestId request, const RequestParams& params) { asked_[request] = params; }
  // From now on no row of this request may come.
  void Ended(RequestId request) { ended_.insert(request); }
  uint64_t hash() const { return hash_; }  // of every plan and its time
  const FakeMemory& memory() const { return memory_; }

 private:
  // Who holds a slot, as the plans so far have it.
  struct Holder {
    RequestId request{};
    std::shared_ptr<const RequestParams> params;
    int32_t known = 0;       // tokens on entering the slot
    int32_t next_begin = 0;  // of its next row of known tokens
    int32_t samples = 0;     // rows that bring a token at least
    int32_t final_length = 0;
  };
  struct Step {
    StepPlan plan;  // as a rank gets it
    StepResult result;
    std::vector<bool> done;  // [row]
    size_t rows_left = 0;
  };

  void Complain(std::string text) { options_.complain(std::move(text)); }
  void Spoil(StepPlan& plan) const;
  void CheckPlan(const StepPlan& plan);
  void CheckOpening(const SlotOpening& opening);
  void CheckRow(const StepRow& row);
  void CheckKnownRow(const StepRow& row, Holder& holder);
  bool IsInFlight(const std::function<bool(const StepRow&)>& is) const;
  void RunSomeRow();
  bool SlotIsBusy(size_t before_step, SlotId slot) const;
  void RunRow(Step& step, size_t row);
  void TradeTokens(StepResult& result);

  const FakeDeviceOptions options_;
  VirtualClock* const clock_;
  Rng rng_;
  FakeMemory memory_;
  std::vector<FakeSlot> slots_;
  std::vector<Holder> holders_;  // [slot]
  std::deque<Step> steps_;
  std::map<RequestId, RequestParams> asked_;
  std::unordered_set<RequestId> ended_;
  uint64_t hash_ = 0xcbf29ce484222325;
};

uint64_t HashBytes(std::string_view bytes, uint64_t hash);  // FNV-1a

}  // namespace fathom::simulation
