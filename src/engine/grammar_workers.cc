#include "engine/grammar_workers.h"

#include <algorithm>
#include <atomic>
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

void FollowRow(const GuidedRow& row) {
  std::vector<GeneratedToken>& tokens = row.result->tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Status status = PaceLimit::Check();
    if (status.ok()) status = row.guide->Take(tokens[i].id);
    if (status.ok()) continue;
    tokens.resize(i);
    row.result->status = std::move(status);
    return;
  }
  if (Status status = row.guide->Foresee(row.result->proposed); !status.ok()) {
    row.result->status = std::move(status);
  }
}

}  // namespace

// Rows of one request, for one thread.
struct GrammarWorkers::Work {
  std::shared_ptr<const Grammar> grammar;
  std::vector<GuidedRow> rows;
  int64_t most_ns = 0, took_ns = 0;

  int64_t beyond_ns() const { return std::max(took_ns - most_ns, int64_t{0}); }
};

void GrammarWorkers::Follow(const std::vector<GuidedRow>& rows) {
  std::vector<Work> works = Divide(rows);
  std::atomic<int64_t> spare_ns = kSparePaceNs;
  const auto follow = [&](Work& work) {
    const int64_t begin_ns = ThreadNs();
    {
      const int64_t of_step = std::max(spare_ns.load(), int64_t{0});
      const PaceLimit limit(work.most_ns + std::min(SpareOf(work.grammar), of_step));
      for (const GuidedRow& row : work.rows) FollowRow(row);
    }
    work.took_ns = ThreadNs() - begin_ns;
    spare_ns -= work.beyond_ns();
  };
  if (works.size() == 1) {
    follow(works[0]);
  } else if (!works.empty()) {
    if (!pool_) pool_ = std::make_unique<ThreadPool>(WorkerCount());
    pool_->ParallelFor(static_cast<int64_t>(works.size()), /*grain=*/1,
                       [&](int64_t begin, int64_t end, int) {
                         for (int64_t i = begin; i < end; ++i)
                           follow(works[static_cast<size_t>(i)]);
                       });
  }
  for (const Work& work : works) Account(work);
}

std::vector<GrammarWorkers::Work> GrammarWorkers::Divide(const std::vector<GuidedRow>& rows) const {
  std::vector<Work> works;
  struct Parts {
    std::vector<size_t> works;
    size_t rows = 0;
  };
  std::map<const Grammar*, Parts> by_grammar;
  for (const GuidedRow& row : rows) {
    Parts& parts = by_grammar[row.guide->grammar().get()];
    if (parts.rows < static_cast<size_t>(WorkerCount())) {
      parts.works.push_back(works.size());
      works.push_back({.grammar = row.guide->grammar(), .rows = {}});
    }
    works[parts.works[parts.rows++ % parts.works.size()]].rows.push_back(row);
  }
  for (Work& work : works) {
    size_t longest = 0, all = 0;
    for (const GuidedRow& row : work.rows) {
      const size_t tokens = row.result->tokens.size() + row.result->proposed.size();
      longest = std::max(longest, tokens);
      all += tokens;
    }
    work.most_ns = PaceNs(static_cast<int64_t>(longest), static_cast<int64_t>(all - longest));
  }
  return works;
}

void GrammarWorkers::Account(const Work& work) {
  const int64_t left_ns = SpareOf(work.grammar) - work.beyond_ns();
  if (work.beyond_ns() > 0) {
    std::erase_if(spare_ns_, [](const auto& entry) { return entry.first.expired(); });
    spare_ns_[work.grammar] = left_ns;
  }
  if (left_ns >= 0) return;
  for (const GuidedRow& row : work.rows) {
    if (row.result->status.ok()) row.result->status = TooSlow();
  }
}

int64_t GrammarWorkers::SpareOf(const std::shared_ptr<const Grammar>& grammar) const {
  const auto known = spare_ns_.find(grammar);
  return known == spare_ns_.end() ? kSparePaceNs : known->second;
}

}  // namespace fathom
