#include "engine/grammar_workers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cpu/cpu_count.h"
#include "grammar/grammar_pace.h"

namespace fathom {
namespace {

// A quarter of the cores: the others are the ops' and the server's.
int WorkerCount() {
  static const int count = std::clamp(UsableCpus() / 4, 1, 8);
  return count;
}

Status TakeTokens(const GuidedRow& row) {
  std::vector<GeneratedToken>& tokens = row.result->tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Status status = PaceLimit::Check();
    if (status.ok()) status = row.guide->Take(tokens[i].id);
    if (status.ok()) continue;
    tokens.resize(i);
    return status;
  }
  return row.guide->Foresee(row.result->proposed);
}

}  // namespace

// How far the rows of one step are.
class GrammarWorkers::Step {
 public:
  Step(const std::vector<GuidedRow>& rows, int64_t most_steps)
      : most_steps_(most_steps), left_(4 * WorkerCount() * most_steps) {
    for (const GuidedRow& row : rows) failed_[row.guide->grammar().get()] = false;
  }

  // THREAD: any.
  void Follow(const GuidedRow& row) {
    std::atomic<bool>& failed = failed_.at(row.guide->grammar().get());
    if (failed) return;
    const size_t tokens = row.result->tokens.size() + row.result->proposed.size();
    const bool late = left_ <= 0;
    const PaceLimit limit(static_cast<int64_t>(tokens) * (late ? most_steps_ / 8 : most_steps_));
    Status status = TakeTokens(row);
    left_ -= limit.taken();
    if (status.ok()) return;
    failed = true;
    if (late && !PaceLimit::Check().ok()) {
      status = Unavailable(
          "The grammars of all answers take too long together: ask for fewer at a time, or later.");
    }
    row.result->status = std::move(status);
  }

  void FailTogether(const std::vector<GuidedRow>& rows) const {
    std::map<const Grammar*, Status> errors;
    for (const GuidedRow& row : rows) {
      if (!row.result->status.ok()) errors.emplace(row.guide->grammar().get(), row.result->status);
    }
    for (const GuidedRow& row : rows) {
      const Grammar* grammar = row.guide->grammar().get();
      if (failed_.at(grammar)) row.result->status = errors.at(grammar);
    }
  }

 private:
  const int64_t most_steps_;
  std::atomic<int64_t> left_;
  std::map<const Grammar*, std::atomic<bool>> failed_;  // by request
};

GrammarWorkers::GrammarWorkers(int32_t vocab_size) : most_steps_(MostSteps(vocab_size)) {}

void GrammarWorkers::Follow(const std::vector<GuidedRow>& rows) {
  Step step(rows, most_steps_);
  if (rows.size() == 1) {
    step.Follow(rows[0]);
  } else if (!rows.empty()) {
    if (!pool_) pool_ = std::make_unique<ThreadPool>(WorkerCount());
    pool_->ParallelFor(static_cast<int64_t>(rows.size()), /*grain=*/1,
                       [&](int64_t begin, int64_t end, int) {
                         for (int64_t i = begin; i < end; ++i)
                           step.Follow(rows[static_cast<size_t>(i)]);
                       });
  }
  step.FailTogether(rows);
}

}  // namespace fathom
