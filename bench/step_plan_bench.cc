// What a step of many groups costs the host before and after the device has it, in steps of decodes
// alone: planned, serialised for the ranks of each group, applied. In time of one thread, without
// what others take of its core, and beside a memcpy of the same bytes.
//
//     ninja -C build step_plan_bench && build/bin/step_plan_bench [groups] [rows of a group]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "scheduler/scheduler.h"

namespace fathom {
namespace {

constexpr int kSteps = 1000, kDepth = 2;
constexpr int32_t kPrompt = 500;

// Nanoseconds of each step.
struct Times {
  std::vector<int64_t> plan, serialize, copy, apply, all;
};

int64_t ThreadNs() {
  timespec now{};
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

template <class F>
int64_t NsOf(F work) {
  const int64_t start = ThreadNs();
  work();
  return ThreadNs() - start;
}

// Requests of unequal prompts, so that each step has some at a page's border, as a server's have.
void AddRequests(Scheduler& scheduler, int32_t drafts) {
  Rng rng(1);
  const SchedulerOptions& options = scheduler.options();
  for (int32_t id = 0; id < options.groups * options.max_num_seqs; ++id) {
    RequestParams params;
    params.prompt.resize(static_cast<size_t>(kPrompt / 2 + rng.Below(kPrompt / 2)));
    params.max_tokens = 2 * kPrompt + (kSteps + kDepth) * (1 + drafts);
    params.stop_tokens = {TokenId{1}};
    scheduler.Add(RequestId{static_cast<uint64_t>(id)},
                  std::make_shared<const RequestParams>(std::move(params)));
  }
}

std::vector<RowOutcome> OutcomesOf(const std::vector<StepRow>& rows) {
  std::vector<RowOutcome> outcomes(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    // Half of the drafts stand.
    if (rows[i].samples) outcomes[i].tokens.resize(1 + rows[i].drafts / 2, TokenId{7});
  }
  return outcomes;
}

bool AllDecode(const StepPlans& plans, int32_t rows) {
  return std::all_of(plans.groups.begin(), plans.groups.end(), [&](const StepPlan& part) {
    return part.rows.size() == static_cast<size_t>(rows) && part.rows[0].is_decode();
  });
}

Times Run(int32_t groups, int32_t rows, int32_t drafts, size_t& bytes) {
  const int32_t tokens = 2 * kPrompt + (kSteps + kDepth) * (1 + drafts);
  Scheduler scheduler({.groups = groups,
                       .max_num_seqs = rows,
                       .max_num_batched_tokens = 8192,
                       .prefill_chunk = 2048,
                       .num_pages = rows * PagesFor(kPrompt + tokens),
                       .max_model_len = kPrompt + tokens,
                       .absorbed_limit = 170,
                       .depth = kDepth,
                       .max_drafts = drafts});
  AddRequests(scheduler, drafts);
  struct InFlight {
    uint64_t step;
    std::vector<StepRow> rows;
  };
  std::deque<InFlight> in_flight;
  Times times;
  std::string copy;
  while (times.all.size() < kSteps) {
    StepPlans plans;
    const int64_t plan_ns = NsOf([&] { plans = scheduler.Plan(); });
    CHECK(!plans.empty());
    std::vector<std::string> messages;
    const int64_t serialize_ns = NsOf([&] {
      for (const StepPlan& part : plans.groups) messages.push_back(Serialize(part));
    });
    bytes = 0;
    for (const std::string& message : messages) bytes += message.size();
    copy.resize(bytes);
    const int64_t copy_ns = NsOf([&] {
      char* to = copy.data();
      for (const std::string& message : messages) {
        std::memcpy(to, message.data(), message.size());
        to += message.size();
      }
    });
    const bool counts = AllDecode(plans, rows);
    in_flight.push_back({plans.step(), plans.Rows()});
    int64_t apply_ns = 0;
    if (in_flight.size() == kDepth) {
      const InFlight& oldest = in_flight.front();
      const std::vector<RowOutcome> outcomes = OutcomesOf(oldest.rows);
      apply_ns = NsOf([&] { scheduler.Apply(oldest.step, oldest.rows, outcomes); });
      in_flight.pop_front();
    }
    if (!counts) continue;
    times.plan.push_back(plan_ns);
    times.serialize.push_back(serialize_ns);
    times.copy.push_back(copy_ns);
    times.apply.push_back(apply_ns);
    times.all.push_back(plan_ns + serialize_ns + apply_ns);
  }
  return times;
}

void Print(const char* what, std::vector<int64_t> ns) {
  std::sort(ns.begin(), ns.end());
  fmt::print("  {:<10} {:>9} {:>9} {:>9}\n", what, ns[ns.size() / 2], ns[ns.size() * 99 / 100],
             ns.back());
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  using namespace fathom;
  const int32_t groups = argc > 1 ? std::atoi(argv[1]) : 8;
  const int32_t rows = argc > 2 ? std::atoi(argv[2]) : 256;
  for (const int32_t drafts : {0, 3}) {
    size_t bytes = 0;
    const Times times = Run(groups, rows, drafts, bytes);
    fmt::print("{} groups of {} decodes + {} drafts, {} bytes; ns of {} steps:\n", groups, rows,
               drafts, bytes, kSteps);
    fmt::print("  {:<10} {:>9} {:>9} {:>9}\n", "", "median", "99 %", "most");
    Print("plan", times.plan);
    Print("serialize", times.serialize);
    Print("apply", times.apply);
    Print("all", times.all);
    Print("memcpy", times.copy);
  }
}
