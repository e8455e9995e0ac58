#include "grammar/grammar_compiler.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/thread_priority.h"
#include "grammar/compile_limit.h"
#include "grammar/grammar_limits.h"

namespace fathom {
namespace {

std::string KeyOf(const GrammarSpec& spec) {
  std::string key = {static_cast<char>('0' + static_cast<int>(spec.kind)), spec.strict ? 's' : '-'};
  return key + spec.text;
}

// A twentieth of a core where others want it: their tokens keep their pace beside compilers that
// take seconds (docs/soak.md). With less, ordinary forms would miss the deadline.
constexpr int kNicer = 13;

constexpr const char* kTooMany = "Too many grammars are being compiled: try again later.";

// The grammar, whose bytes are among `held` until nobody has it.
std::shared_ptr<const Grammar> Counted(std::shared_ptr<const Grammar> grammar,
                                       std::shared_ptr<std::atomic<size_t>> held) {
  const Grammar* const raw = grammar.get();
  const size_t bytes = raw->bytes();
  *held += bytes;
  return {raw, [grammar = std::move(grammar), held = std::move(held), bytes](const Grammar*) {
            *held -= bytes;
          }};
}

}  // namespace

std::string RegexOfChoices(const std::vector<std::string>& choices) {
  constexpr std::string_view kSpecial = R"(\^$.|?*+()[]{}/-)";
  std::string regex = "(";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) regex += '|';
    for (const char c : choices[i]) {
      if (c == '\n' || c == '\r' || c == '\t') {
        regex += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
        continue;
      }
      if (kSpecial.find(c) != kSpecial.npos) regex += '\\';
      regex += c;
    }
  }
  return regex + ")";
}

GrammarCompiler::GrammarCompiler(Compile compile, const GrammarCompilerOptions& options)
    : options_(options),
      compile_(std::move(compile)),
      held_(std::make_shared<std::atomic<size_t>>(0)) {
  for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Work(); });
}

GrammarCompiler::~GrammarCompiler() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<const void> GrammarCompiler::Get(GrammarSpec spec, std::function<void(Made)> done,
                                                 uint64_t client) {
  std::string key = KeyOf(spec);
  std::unique_lock lock(mutex_);
  if (std::shared_ptr<const Grammar> grammar = Find(key)) {
    lock.unlock();
    done(std::move(grammar));
    return nullptr;
  }
  if (std::optional<Status> why = FindRefusal(key)) {
    lock.unlock();
    done(*std::move(why));
    return nullptr;
  }
  if (const auto open = open_.find(key); open != open_.end()) {
    if (std::shared_ptr<const void> wanted = open->second->wanted.lock()) {
      open->second->waiting.push_back(std::move(done));
      Join(open->second, client);
      return wanted;
    }
  }
  ForgetUnwanted();
  const auto wanted = std::make_shared<char>();
  const auto job = std::make_shared<Job>();
  job->spec = std::move(spec);
  job->key = std::move(key);
  job->client = client;
  job->turn = TurnOf(client);
  job->deadline = std::chrono::steady_clock::now() + options_.deadline;
  job->waiting.push_back(std::move(done));
  job->wanted = wanted;
  open_[job->key] = job;  // in the place of one that nobody wants
  Insert(job);
  changed_.notify_one();
  if (jobs_.size() <= options_.max_waiting) return wanted;
  const std::shared_ptr<Job> last = std::move(jobs_.back());
  jobs_.pop_back();
  open_.erase(last->key);
  lock.unlock();
  for (const auto& refused : last->waiting) refused(Unavailable(kTooMany));
  return wanted;
}

void GrammarCompiler::Insert(std::shared_ptr<Job> job) {
  const auto behind = std::ranges::upper_bound(jobs_, job->turn, {}, &Job::turn);
  jobs_.insert(behind, std::move(job));
}

// One that waits comes no later for this client than one of its own would.
void GrammarCompiler::Join(const std::shared_ptr<Job>& job, uint64_t client) {
  const auto place = std::ranges::find(jobs_, job);
  if (place == jobs_.end()) return;  // it is in work
  job->deadline = std::chrono::steady_clock::now() + options_.deadline;
  const uint64_t turn = TurnOf(client);
  if (turn >= job->turn) return;
  jobs_.erase(place);
  job->client = client;
  job->turn = turn;
  Insert(job);
}

// As the scheduler's: one after the client's last that waits, never before what was taken, nor
// before another's of the same turn that came earlier.
uint64_t GrammarCompiler::TurnOf(uint64_t client) const {
  const auto last =
      std::find_if(jobs_.rbegin(), jobs_.rend(),
                   [client](const std::shared_ptr<Job>& job) { return job->client == client; });
  return std::max(turn_, last == jobs_.rend() ? 0 : (*last)->turn) + 1;
}

void GrammarCompiler::ForgetUnwanted() {
  std::erase_if(jobs_, [this](const std::shared_ptr<Job>& job) {
    if (!job->wanted.expired()) return false;
    open_.erase(job->key);
    return true;
  });
}

GrammarCompiler::Made GrammarCompiler::MadeOf(const Job& job) {
  if (*held_ > options_.grammar_bytes) {
    return Unavailable("The grammars of the requests in flight are too large: try again later.");
  }
  const CompileLimit limit(options_.compile_time, options_.compile_bytes,
                           [&] { return stopping_ || job.wanted.expired(); });
  return Counted(TRY(compile_(job.spec)), held_);
}

void GrammarCompiler::Work() {
  LowerThisThread(kNicer, "compile grammars");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    ForgetUnwanted();
    if (jobs_.empty()) continue;
    const std::shared_ptr<Job> job = std::move(jobs_.front());
    jobs_.pop_front();
    turn_ = job->turn;
    lock.unlock();
    const bool late = std::chrono::steady_clock::now() > job->deadline;  // of all who wait
    const Status taken = late ? Unavailable(kTooMany) : CheckGrammar(job->spec);
    Made made = taken.ok() ? MadeOf(*job) : taken;
    lock.lock();
    if (made.ok()) {
      Keep(job->key, *made);
    } else if (taken.ok() && made.status().code() == StatusCode::kInvalidArgument) {
      const auto until = std::chrono::steady_clock::now() + options_.refusal_kept;
      refusals_.push_back({job->key, made.status(), until});
      if (refusals_.size() > options_.max_refusals) refusals_.pop_front();
    }
    if (const auto open = open_.find(job->key); open != open_.end() && open->second == job) {
      open_.erase(open);
    }
    const std::vector<std::function<void(Made)>> waiting = std::move(job->waiting);
    lock.unlock();
    for (const auto& done : waiting) done(made);
    lock.lock();
  }
}

std::shared_ptr<const Grammar> GrammarCompiler::Find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().grammar;
}

std::optional<Status> GrammarCompiler::FindRefusal(const std::string& key) {
  const auto now = std::chrono::steady_clock::now();
  while (!refusals_.empty() && refusals_.front().until <= now) refusals_.pop_front();
  const auto found = std::ranges::find(refusals_, key, &Refusal::key);
  return found == refusals_.end() ? std::nullopt : std::optional(found->why);
}

// A grammar that alone is larger than the cache is not kept.
void GrammarCompiler::Keep(const std::string& key, std::shared_ptr<const Grammar> grammar) {
  const auto size = [](const Entry& entry) { return entry.key.size() + entry.grammar->bytes(); };
  entries_.push_front({key, std::move(grammar)});
  by_key_[key] = entries_.begin();
  cached_bytes_ += size(entries_.front());
  while (cached_bytes_ > options_.cache_bytes || entries_.size() > options_.cache_entries) {
    cached_bytes_ -= size(entries_.back());
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

}  // namespace fathom
