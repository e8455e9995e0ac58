#include "engine/grammar_workers.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/thread_priority.h"
#include "cpu/cpu_count.h"
#include "grammar/grammar_pace.h"

namespace fathom {
namespace {

constexpr std::chrono::milliseconds kLookEvery(10);  // at threads that are late
constexpr int kLeftNice = 19;                        // the least that there is
constexpr int kMostLeft = 8;                         // beside those of requests that run

// A quarter of the cores: the others are the ops' and the server's.
int WorkerCount() {
  return std::clamp(UsableCpus() / 4, 1, 8);
}

}  // namespace

// Rows of one request. Whoever follows them holds it as well, and nothing of the engine's.
struct GrammarWorkers::Work {
  struct Row {
    std::shared_ptr<GrammarGuide> guide;
    std::vector<TokenId> tokens, drafts;
    size_t taken = 0;
    Status status;
    RowResult* result = nullptr;  // the engine's thread alone knows what it points to
  };
  enum State : uint8_t { kWaits, kRuns, kDone, kLeft };

  void Begin() {
    state = kRuns;
    thread = gettid();
    CHECK(pthread_getcpuclockid(pthread_self(), &clock) == 0);
    began_ns = ClockNs();
  }
  int64_t Took() const { return ClockNs() - began_ns; }

  void Follow() {
    for (Row& row : rows) {
      for (; row.taken < row.tokens.size() && row.status.ok(); row.taken += row.status.ok()) {
        row.status = row.guide->Take(row.tokens[row.taken]);
      }
      if (row.status.ok()) row.status = row.guide->Foresee(row.drafts);
    }
  }

  int64_t ClockNs() const {
    timespec now{};
    CHECK(clock_gettime(clock, &now) == 0);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }

  std::shared_ptr<const Grammar> grammar;
  std::vector<Row> rows;
  int64_t most_ns = 0, spare_ns = 0;  // what they may take, and beyond that
  // Guarded by Shared::mutex:
  State state = kWaits;
  pid_t thread = 0;   // that follows them
  clockid_t clock{};  // its own time, and when it began
  int64_t began_ns = 0, took_ns = 0;
};

struct GrammarWorkers::Shared {
  std::mutex mutex;
  std::condition_variable changed, done;
  // Guarded by mutex:
  std::deque<std::shared_ptr<Work>> waiting;
  bool stopped = false;
  int left = 0;  // threads that are at work although nobody waits for them
};

GrammarWorkers::~GrammarWorkers() {
  if (!shared_) return;
  std::lock_guard lock(shared_->mutex);
  shared_->stopped = true;
  shared_->changed.notify_all();
}

void GrammarWorkers::Run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->stopped || !shared->waiting.empty(); });
    if (shared->stopped) return;
    const std::shared_ptr<Work> work = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    work->Begin();
    lock.unlock();
    work->Follow();
    lock.lock();
    if (work->state == Work::kLeft) {  // another thread has this one's place
      --shared->left;
      return;
    }
    work->took_ns = work->Took();
    work->state = Work::kDone;
    shared->done.notify_one();
  }
}

void GrammarWorkers::Follow(const std::vector<GuidedRow>& rows) {
  if (rows.empty()) return;
  if (!shared_) {
    shared_ = std::make_shared<Shared>();
    for (int i = 0; i < WorkerCount(); ++i) std::thread(Run, shared_).detach();
  }
  const Works works = Divide(rows);
  Await(works);
  for (const std::shared_ptr<Work>& work : works) HandBack(*work);
}

Status GrammarWorkers::HasRoom() const {
  if (!shared_) return {};
  std::lock_guard lock(shared_->mutex);
  if (shared_->left < kMostLeft) return {};
  return Unavailable("Other requests' grammars keep the server busy: try again later.");
}

GrammarWorkers::Works GrammarWorkers::Divide(const std::vector<GuidedRow>& rows) {
  Works works;
  std::map<const Grammar*, std::pair<Works, size_t>> by_grammar;  // and how many rows they have
  for (const GuidedRow& row : rows) {
    auto& [parts, count] = by_grammar[row.grammar.get()];
    if (count < static_cast<size_t>(WorkerCount())) {
      works.push_back(parts.emplace_back(std::make_shared<Work>()));
      parts.back()->grammar = row.grammar;
      parts.back()->spare_ns = SpareOf(row.grammar);
    }
    Work::Row& mine = parts[count++ % parts.size()]->rows.emplace_back();
    mine.guide = row.guide;
    for (const GeneratedToken& token : row.result->tokens) mine.tokens.push_back(token.id);
    mine.drafts = row.result->proposed;
    mine.result = row.result;
  }
  for (const std::shared_ptr<Work>& work : works) {
    size_t longest = 0, all = 0;
    for (const Work::Row& row : work->rows) {
      const size_t tokens = row.tokens.size() + row.drafts.size();
      longest = std::max(longest, tokens);
      all += tokens;
    }
    work->most_ns = PaceNs(static_cast<int64_t>(longest), static_cast<int64_t>(all - longest));
  }
  return works;
}

void GrammarWorkers::Await(const Works& works) {
  std::unique_lock lock(shared_->mutex);
  shared_->waiting.insert(shared_->waiting.end(), works.begin(), works.end());
  shared_->changed.notify_all();
  for (const std::shared_ptr<Work>& work : works) {
    while (work->state == Work::kWaits || work->state == Work::kRuns) {
      shared_->done.wait_for(lock, kLookEvery);
      for (const std::shared_ptr<Work>& late : works) {
        if (late->state != Work::kRuns) continue;
        late->took_ns = late->Took();
        if (late->took_ns <= late->most_ns + late->spare_ns) continue;
        try {
          std::thread(Run, shared_).detach();
        } catch (const std::system_error&) {
          continue;  // the system has no thread for its place: it is waited for
        }
        late->state = Work::kLeft;
        ++shared_->left;
        LowerThread(late->thread, kLeftNice, "make masks that nobody waits for");
      }
    }
  }
}

void GrammarWorkers::HandBack(const Work& work) {
  const int64_t beyond_ns = work.took_ns - work.most_ns;
  const int64_t left_ns = SpareOf(work.grammar) - std::max(beyond_ns, int64_t{0});
  if (beyond_ns > 0) {
    std::erase_if(spare_ns_, [](const auto& entry) { return entry.first.expired(); });
    spare_ns_[work.grammar] = left_ns;
  }
  for (const Work::Row& row : work.rows) {
    if (left_ns < 0) {
      row.result->tokens.clear();
      row.result->status = TooSlow();
    } else if (!row.status.ok()) {
      row.result->tokens.resize(row.taken);
      row.result->status = row.status;
    }
  }
}

int64_t GrammarWorkers::SpareOf(const std::shared_ptr<const Grammar>& grammar) const {
  const auto known = spare_ns_.find(grammar);
  return known == spare_ns_.end() ? kSparePaceNs : known->second;
}

}  // namespace fathom
