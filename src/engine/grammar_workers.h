// Threads on which grammars follow what steps bring.
#pragma once

#include <memory>
#include <vector>

#include "cpu/thread_pool.h"
#include "engine/executor.h"
#include "engine/grammar_guide.h"

namespace fathom {

// What a request's row brought, to be taken by its guide.
struct GuidedRow {
  GrammarGuide* guide = nullptr;
  RowResult* result = nullptr;  // gets the error, and is cut before the token that fails
};

// Has guides take what their rows brought, several at a time. Which thread makes which mask changes
// no bit of it. A row may take what its answer's pace says; once all of a step together have taken
// four times each() for each thread, those that follow may take an eighth of it a token, and fail
// with kUnavailable. With one row of a request all of them fail. THREAD: the engine's.
class GrammarWorkers {
 public:
  void Follow(const std::vector<GuidedRow>& rows);

 private:
  class Step;

  std::unique_ptr<ThreadPool> pool_;  // made when it has more than one thing to do
};

}  // namespace fathom
