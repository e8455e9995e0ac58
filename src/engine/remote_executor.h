// A group's ranks on another host, as an executor of the first one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "engine/executor.h"
#include "hosts/hosts.h"

namespace fathom {

// What those ranks said. THREAD: any.
class RemoteResults {
 public:
  RemoteResults(int host, int group) : host(host), group(group) {}

  Status Take(std::string_view message);  // of a kResultMessage
  // Of a kRanksMessage: of ranks of that host, which has so many, and group, always the same ones.
  Status TakeRanks(std::string_view message, int ranks_each);
  std::vector<RankStats> Ranks() const;
  void Fail(const Status& why);  // nothing comes any more
  // Of a step of so many rows. Of a host that is lost: why.
  StepResult Wait(uint64_t step, size_t rows);

  const int host, group;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<StepResult> results_;
  std::vector<RankStats> ranks_;
  Status failure_;
};

class RemoteExecutor final : public Executor {
 public:
  // `hosts` must outlive it.
  RemoteExecutor(Hosts& hosts, std::shared_ptr<RemoteResults> results)
      : hosts_(hosts), results_(std::move(results)) {}

  void Submit(StepPlans plans) override;  // REQUIRES: of one group
  void SubmitMasks(std::vector<StepMasks> groups) override;
  StepResult Wait() override;
  std::vector<RankStats> Ranks() const override { return results_->Ranks(); }

 private:
  void Send(uint32_t kind, std::string_view message);

  Hosts& hosts_;
  const std::shared_ptr<RemoteResults> results_;
  struct Awaited {
    uint64_t step = 0;
    size_t rows = 0;
  };
  std::deque<Awaited> awaited_;  // steps that end with a result
};

}  // namespace fathom
