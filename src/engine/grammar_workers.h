// Threads on which grammars follow what steps bring.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/executor.h"
#include "engine/grammar_guide.h"
#include "grammar/grammar.h"

namespace fathom {

// What a request's row brought, to be taken by its guide.
struct GuidedRow {
  std::shared_ptr<GrammarGuide> guide;
  std::shared_ptr<const Grammar> grammar;  // of all choices of a request the same one
  RowResult* result = nullptr;             // cut before a token that fails, with its error
};

// Has guides take what their rows brought, those of several requests at a time. Which thread makes
// which mask changes no bit of it.
//
// A mask may take seconds, and nothing stops who makes it. So no step waits for longer than what a
// thread has of a request's rows may take together (PaceNs): then they fail, and the thread is left
// to itself, gives way to all others, and ends when it has done. THREAD: the engine's.
class GrammarWorkers {
 public:
  GrammarWorkers() = default;
  GrammarWorkers(const GrammarWorkers&) = delete;
  ~GrammarWorkers();  // does not wait for those that were left

  void Follow(const std::vector<GuidedRow>& rows);
  // kUnavailable while so many threads were left that no request with a grammar should begin.
  Status HasRoom() const;

 private:
  struct Work;
  struct Shared;
  using Works = std::vector<std::shared_ptr<Work>>;

  static void Run(const std::shared_ptr<Shared>& shared);
  Works Divide(const std::vector<GuidedRow>& rows);
  void Await(const Works& works);
  void HandBack(const Work& work);
  int64_t SpareOf(const std::shared_ptr<const Grammar>& grammar) const;

  std::shared_ptr<Shared> shared_;  // made with the threads, when there are rows
  // What requests that were slow once have left.
  std::map<std::weak_ptr<const Grammar>, int64_t, std::owner_less<>> spare_ns_;
};

}  // namespace fathom
