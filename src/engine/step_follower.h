// What hosts other than the first do: run the steps that it tells them of, and say what came of
// them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/bounded_queue.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/host_messages.h"
#include "hosts/hosts.h"
#include "scheduler/step_masks.h"

namespace fathom {

class StepFollower {
 public:
  // `groups`: the ranks of this host, by data-parallel group. `hosts` must outlive it.
  StepFollower(Hosts& hosts, std::map<uint32_t, std::unique_ptr<Executor>> groups, int stages,
               SlotMaskRoom room);
  ~StepFollower();

 private:
  // THREAD: the link's.
  Status Take(uint32_t kind, std::string_view bytes);

  struct Group {
    std::unique_ptr<Executor> executor;
    BoundedQueue<uint64_t> awaited{kMostInFlight};  // steps that end with a result
    std::deque<StepPlan> masked;                    // whose masks have not come. THREAD: the link's
    uint64_t last_step = 0;                         // that was submitted. THREAD: the link's
    std::thread answers;
  };
  Status Run(Group& group, StepPlan plan);
  Status TakeMasks(Group& group, std::string_view message);

  Hosts& hosts_;
  const int stages_;
  const SlotMaskRoom room_;
  std::map<uint32_t, Group> groups_;
};

}  // namespace fathom
