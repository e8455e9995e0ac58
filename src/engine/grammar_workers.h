// Threads on which grammars follow what steps bring.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cpu/thread_pool.h"
#include "engine/executor.h"
#include "engine/grammar_guide.h"
#include "grammar/grammar.h"

namespace fathom {

// What a request's row brought, to be taken by its guide.
struct GuidedRow {
  GrammarGuide* guide = nullptr;
  RowResult* result = nullptr;  // cut before a token that fails, with its error
};

// Has guides take what their rows brought, several at a time. Which thread makes which mask changes
// no bit of it. Rows of a request that take longer than PaceNs() and what it has to spare fail, and
// all rows of a step have no more to spare than one request. THREAD: the engine's.
class GrammarWorkers {
 public:
  void Follow(const std::vector<GuidedRow>& rows);

 private:
  struct Work;

  std::vector<Work> Divide(const std::vector<GuidedRow>& rows) const;
  void Account(const Work& work);
  int64_t SpareOf(const std::shared_ptr<const Grammar>& grammar) const;

  std::unique_ptr<ThreadPool> pool_;  // made when it has more than one thing to do
  // What requests that were slow have left.
  std::map<std::weak_ptr<const Grammar>, int64_t, std::owner_less<>> spare_ns_;
};

}  // namespace fathom
