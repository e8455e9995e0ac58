#include "grammar/grammar_compiler.h"

#include <algorithm>
#include <new>
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

const Status& StatusOf(const Status& status) {
  return status;
}
Status StatusOf(const GrammarCompiler::Made& made) {
  return made.status();
}

GrammarCacheLimits LimitsOf(const GrammarCompilerOptions& options) {
  const size_t quarter = options.grammar_bytes / 4;
  return {.bytes = std::min(options.cache_bytes, quarter),
          .entries = options.cache_entries,
          .all = options.grammar_bytes,
          .client = quarter,
          .answer = std::min(quarter, options.answer_bytes)};
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
      cache_(std::make_shared<GrammarCache>(LimitsOf(options))) {
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
  if (std::shared_ptr<const Grammar> grammar = cache_->Find(key)) {
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
      Join(open->second, client);
      return Wait(*open->second, std::move(wanted), client, std::move(done));
    }
  }
  ForgetUnwanted();
  const std::shared_ptr<const void> wanted = std::make_shared<char>();
  const auto job = std::make_shared<Job>();
  job->spec = std::move(spec);
  job->key = std::move(key);
  job->client = client;
  job->turn = TurnOf(client);
  job->deadline = std::chrono::steady_clock::now() + options_.deadline;
  job->wanted = wanted;
  std::shared_ptr<const void> here = Wait(*job, wanted, client, std::move(done));
  open_[job->key] = job;  // in the place of one that nobody wants
  Insert(job);
  changed_.notify_one();
  if (jobs_.size() <= options_.max_waiting) return here;
  const std::shared_ptr<Job> last = std::move(jobs_.back());
  jobs_.pop_back();
  open_.erase(last->key);
  lock.unlock();
  for (const Waiter& refused : last->waiting) refused.done(Unavailable(kTooMany));
  return here;
}

// Each has a handle of its own, so that what those who have left wanted is let go.
std::shared_ptr<const void> GrammarCompiler::Wait(Job& job, std::shared_ptr<const void> wanted,
                                                  uint64_t client, std::function<void(Made)> done) {
  std::erase_if(job.waiting, [](const Waiter& waiter) { return waiter.here.expired(); });
  auto here = std::make_shared<std::shared_ptr<const void>>(std::move(wanted));
  job.waiting.push_back({here, client, std::move(done)});
  return here;
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

// Of those who wait the first whose share has room pays, so that nobody is refused for another's,
// nor told of it. `take`: what needs the room.
template <class Take>
auto GrammarCompiler::FirstWithRoom(Job& job, const Take& take) -> decltype(take(uint64_t{})) {
  std::lock_guard lock(mutex_);
  if (job.wanted.expired()) return take(job.client);  // for who asks again
  for (Waiter& waiter : job.waiting) {
    if (waiter.here.expired()) continue;
    auto taken = take(waiter.client);
    waiter.full = StatusOf(taken);
    if (!waiter.full.ok()) continue;
    for (Waiter& other : job.waiting) other.full = Status();
    return taken;
  }
  return Unavailable("No memory is left for the grammar: try again later.");
}

GrammarCompiler::Made GrammarCompiler::Compiled(const Job& job) {
  const CompileLimit limit(options_.compile_time, options_.compile_bytes,
                           [&] { return stopping_ || job.wanted.expired(); });
  return compile_(job.spec);
}

GrammarCompiler::Made GrammarCompiler::MadeOf(Job& job) try {
  if (std::chrono::steady_clock::now() > job.deadline) return Unavailable(kTooMany);  // of all
  TRY(CheckGrammar(job.spec));
  TRY(FirstWithRoom(job, [this](uint64_t client) { return cache_->MakeRoom(client); }));
  Made made = Compiled(job);
  if (made.ok()) {
    return FirstWithRoom(
        job, [&](uint64_t client) -> Made { return cache_->Keep(job.key, *made, client); });
  }
  std::lock_guard lock(mutex_);
  if (made.status().code() == StatusCode::kInvalidArgument) {
    const auto until = std::chrono::steady_clock::now() + options_.refusal_kept;
    refusals_.push_back({job.key, made.status(), until});
    if (refusals_.size() > options_.max_refusals) refusals_.pop_front();
  }
  return made;
} catch (const std::bad_alloc&) {
  return Unavailable("No memory is left to compile the grammar: try again later.");
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
    const Made made = MadeOf(*job);
    lock.lock();
    if (const auto open = open_.find(job->key); open != open_.end() && open->second == job) {
      open_.erase(open);
    }
    const std::vector<Waiter> waiting = std::move(job->waiting);
    lock.unlock();
    for (const Waiter& waiter : waiting) waiter.done(waiter.full.ok() ? made : waiter.full);
    lock.lock();
  }
}

std::optional<Status> GrammarCompiler::FindRefusal(const std::string& key) {
  const auto now = std::chrono::steady_clock::now();
  while (!refusals_.empty() && refusals_.front().until <= now) refusals_.pop_front();
  const auto found = std::ranges::find(refusals_, key, &Refusal::key);
  return found == refusals_.end() ? std::nullopt : std::optional(found->why);
}

}  // namespace fathom
