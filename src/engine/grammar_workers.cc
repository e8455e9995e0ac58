#include "engine/grammar_workers.h"

#include <algorithm>
#include <atomic>
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
  explicit Step(const std::vector<GuidedRow>& rows) : rows_(rows) {
    for (const GuidedRow& row : rows) requests_[row.guide->grammar().get()];
    if (!rows.empty()) left_ = 4 * WorkerCount() * rows[0].guide->pace().each();
  }

  // THREAD: any.
  void Follow(size_t i) {
    const GuidedRow& row = rows_[i];
    Request& request = requests_.at(row.guide->grammar().get());
    if (!row.result->status.ok()) return;  // it ends without
    if (request.failed) return;
    const auto tokens =
        static_cast<int64_t>(row.result->tokens.size() + row.result->proposed.size());
    AnswerPace& pace = row.guide->pace();
    const bool late = left_ <= 0;
    const int64_t may = late ? tokens * pace.each() / 8 : pace.May(tokens);
    const PaceLimit limit(may);
    Status status = TakeTokens(row);
    left_ -= limit.taken();
    pace.Took(tokens, limit.taken());
    if (status.ok() || request.failed.exchange(true)) return;
    if (late && limit.taken() > may) {
      status = Unavailable(
          "The grammars of all answers take too long together: ask for fewer at a time, or later.");
    }
    request.why = std::move(status);
  }

  void FailTogether() {
    for (const GuidedRow& row : rows_) {
      const Request& request = requests_.at(row.guide->grammar().get());
      if (request.failed && row.result->status.ok()) row.result->status = request.why;
    }
  }

 private:
  struct Request {
    std::atomic<bool> failed = false;
    Status why;  // of the row that failed first
  };

  const std::vector<GuidedRow>& rows_;
  std::atomic<int64_t> left_ = 0;
  std::map<const Grammar*, Request> requests_;
};

void GrammarWorkers::Follow(const std::vector<GuidedRow>& rows) {
  Step step(rows);
  if (rows.size() == 1) {
    step.Follow(0);
  } else if (!rows.empty()) {
    if (!pool_) pool_ = std::make_unique<ThreadPool>(WorkerCount());
    pool_->ParallelFor(static_cast<int64_t>(rows.size()), /*grain=*/1,
                       [&](int64_t begin, int64_t end, int) {
                         for (int64_t i = begin; i < end; ++i) step.Follow(static_cast<size_t>(i));
                       });
  }
  step.FailTogether();
}

}  // namespace fathom
