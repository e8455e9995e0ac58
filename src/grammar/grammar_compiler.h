// Grammars from what requests say: limits before the compiler, a deadline around it, and what it
// made, or why it did not, kept for who asks again.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/grammar_cache.h"

namespace fathom {

enum class GrammarKind {
  kJsonObject,  // any JSON object; no text
  kJsonSchema,
  kRegex,          // of the whole answer
  kEbnf,           // of the rule "root"
  kStructuralTag,  // ReadStructuralTag()'s: text, schemas and patterns
  kCalls,          // the server's own structural tag: schemas between markers, which are tokens
  kChoices,        // RegexOfChoices(): a regular expression with limits of its own
};

// What a request asks for, as it says it.
struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;
  // Of a schema: properties and items that it does not name are forbidden, as OpenAI's strict.
  bool strict = false;

  friend bool operator==(const GrammarSpec&, const GrammarSpec&) = default;
};

// A regular expression that matches each of the choices and nothing else.
std::string RegexOfChoices(const std::vector<std::string>& choices);

// What grammars are made for.
struct GrammarVocabulary {
  // What each token adds to a text; "" for one that no grammar may use, as special tokens.
  std::vector<std::string> tokens;
  std::vector<TokenId> eos;
  int32_t size = 0;  // of the logits: as many as tokens, or more
};

struct GrammarCompilerOptions {
  int threads = 2;
  size_t max_waiting = 64;  // that no thread has taken
  // Twenty times what ordinary forms take, since these threads may have a twentieth of a core.
  std::chrono::milliseconds deadline{60'000};
  std::chrono::milliseconds compile_time{10'000};  // of a thread's own work, then it is refused
  size_t compile_bytes = size_t{32} << 20;  // that a thread takes meanwhile, then it is refused
  size_t cache_bytes = size_t{256} << 20;   // or a quarter of `grammar_bytes`, if that is less
  size_t cache_entries = 256;
  // Of all grammars that live, those that requests in flight hold among them, and what their
  // answers take: with more no other is compiled, and no answer goes on. A client may have a
  // quarter.
  size_t grammar_bytes = size_t{1} << 30;
  size_t answer_bytes = kMostAnswerBytes;  // that one answer takes at most
  size_t max_refusals = 64;                // that are kept, each of a text within grammar_limits.h
  std::chrono::milliseconds refusal_kept{60'000};
};

// `compile_bytes` for a vocabulary of so many tokens: automata say of each state which they allow.
// Ordinary forms take 1 MiB with 4096; the first one's share of what is made for all is in it, too.
inline constexpr size_t GrammarCompileBytes(size_t tokens) {
  return (size_t{16} << 20) + tokens * 1024;
}

// `grammar_bytes`, at least: two compilers at work for one client whose share is nearly full leave
// room for others.
inline constexpr size_t LeastGrammarBytes(size_t tokens) {
  return 6 * GrammarCompileBytes(tokens);
}

// What all compilers of a server may have at a time: each passes its limit by half at most.
inline constexpr size_t AllCompilersBytes(size_t tokens) {
  return GrammarCompilerOptions().threads * (GrammarCompileBytes(tokens) / 2 * 3);
}

// THREAD: any.
class GrammarCompiler {
 public:
  using Made = Result<std::shared_ptr<const Grammar>>;
  using Compile = std::function<Made(const GrammarSpec&)>;

  // `compile` is called on threads of this, several at a time, and may throw std::bad_alloc;
  // xgrammar's is MakeXgrammarCompile().
  GrammarCompiler(Compile compile, const GrammarCompilerOptions& options);
  // Has what is being compiled given up, and waits for that; what waits is dropped.
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;

  // Calls `done` once, on whatever thread: with a grammar; kInvalidArgument, naming the place, for
  // what is no grammar, is beyond the limits, or could not be held to; kUnavailable while too many
  // are being compiled or held, if no memory is left, or if its turn has not come by the deadline.
  // Whoever waits stops waiting at the deadline; a grammar that comes later is kept for who asks
  // again. `compile` asks CompileLimit::Check() when to give up. Who has let go of what is returned
  // does not wait, and `done` may not be called; where nobody waits the grammar is not compiled on.
  // `client`: who asks. Clients take turns, each with its own oldest, and one grammar that several
  // ask for with the first of theirs; where too many wait the last in turn is turned away.
  [[nodiscard]] std::shared_ptr<const void> Get(GrammarSpec spec, std::function<void(Made)> done,
                                                uint64_t client = 0);

  // What is to be started for a client: its answers count for it (GrammarCache::For).
  std::shared_ptr<const Grammar> For(std::shared_ptr<const Grammar> grammar, uint64_t client) {
    return cache_->For(std::move(grammar), client);
  }

  const GrammarCompilerOptions& options() const { return options_; }
  size_t grammar_bytes() const { return cache_->bytes(); }  // of all that live, and their answers

 private:
  struct Waiter {
    std::weak_ptr<const void> here;  // while it waits
    uint64_t client = 0;
    std::function<void(Made)> done;
    Status full;  // why nothing more is compiled for it
  };
  struct Job {
    GrammarSpec spec;
    std::string key;
    uint64_t client = 0;  // whose turn it has
    uint64_t turn = 0;
    std::chrono::steady_clock::time_point deadline;
    std::vector<Waiter> waiting;       // one at least
    std::weak_ptr<const void> wanted;  // by somebody who waits
  };

  // Of a compiler, which may have taken seconds for it.
  struct Refusal {
    std::string key;
    Status why;
    std::chrono::steady_clock::time_point until;  // a grammar that was too slow once may not be
  };

  void Work();
  void Insert(std::shared_ptr<Job> job);
  void Join(const std::shared_ptr<Job>& job, uint64_t client);
  static std::shared_ptr<const void> Wait(Job& job, std::shared_ptr<const void> wanted,
                                          uint64_t client, std::function<void(Made)> done);
  Made MadeOf(Job& job);
  Made Compiled(const Job& job);
  template <class Take>
  auto FirstWithRoom(Job& job, const Take& take) -> decltype(take(uint64_t{}));
  void ForgetUnwanted();
  uint64_t TurnOf(uint64_t client) const;
  std::optional<Status> FindRefusal(const std::string& key);

  const GrammarCompilerOptions options_;
  const Compile compile_;
  const std::shared_ptr<GrammarCache> cache_;  // answers may outlive this

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<std::shared_ptr<Job>> jobs_;                       // that no thread has taken, by turn
  uint64_t turn_ = 0;                                           // the latest that was taken
  std::unordered_map<std::string, std::shared_ptr<Job>> open_;  // by key: these, and those in work
  std::deque<Refusal> refusals_;                                // the oldest first
  std::atomic<bool> stopping_{false};                           // also read without it

  std::vector<std::thread> threads_;
};

}  // namespace fathom
