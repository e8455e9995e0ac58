// The ranks of all groups, with delayed results: they run what is in flight in any order that the
// executor's contract allows, and model every cell of the page pools.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/executor.h"
#include "scheduler/scheduler.h"
#include "simulation/fake_group.h"

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

  void Submit(StepPlans plans) override;
  void SubmitMasks(std::vector<StepMasks>) override { options_.complain("no row is masked"); }
  StepResult Wait() override;

  // What a request asks, before any row of it comes.
  void Expect(RequestId request, const RequestParams& params) { requests_.asked[request] = params; }
  // From now on no row of this request may come.
  void Ended(RequestId request) { requests_.ended.insert(request); }
  uint64_t hash() const { return hash_; }  // of every plan and its time
  const std::deque<FakeGroup>& groups() const { return groups_; }
  int64_t moved_requests() const { return requests_.moved; }
  int64_t late_answers() const { return late_answers_; }  // of groups that others were ahead of

 private:
  // What is done wrong to a step, and shows in it alone.
  void Spoil(StepPlans& plans) const;
  void CheckStep(const StepPlans& plans) const;
  StepShape ShapeOf(const StepPlans& plans) const;
  void TradeTokens(StepResult& result);

  const FakeDeviceOptions options_;
  VirtualClock* const clock_;
  Rng rng_;
  KnownRequests requests_;
  std::deque<FakeGroup> groups_;
  std::deque<uint64_t> steps_;  // in flight
  uint64_t latest_ = 0;
  int32_t pushes_ = 0;  // steps until none with rows is short of the last stage
  int64_t late_answers_ = 0;
  uint64_t hash_ = 0xcbf29ce484222325;
};

uint64_t HashBytes(std::string_view bytes, uint64_t hash);  // FNV-1a

}  // namespace fathom::simulation
