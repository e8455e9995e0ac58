// Threads on which grammars follow what steps bring.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/thread_pool.h"
#include "engine/executor.h"
#include "engine/grammar_guide.h"

namespace fathom {

// What a request's row brought, to be taken by its guide.
struct GuidedRow {
  GrammarGuide* guide = nullptr;
  RowResult* result = nullptr;  // cut before a token that fails, with its error
};

// Has guides take what their rows brought, several at a time. Which thread makes which mask changes
// no bit of it. A row may take MostSteps() for each of its tokens; once all of a step together have
// taken four times that of each thread, those that follow may take an eighth. With one row of a
// request all of them fail. THREAD: the engine's.
class GrammarWorkers {
 public:
  // `vocab_size`: as GrammarGuide::Start()'s.
  explicit GrammarWorkers(int32_t vocab_size);

  void Follow(const std::vector<GuidedRow>& rows);

 private:
  class Step;

  const int64_t most_steps_;
  std::unique_ptr<ThreadPool> pool_;  // made when it has more than one thing to do
};

}  // namespace fathom
