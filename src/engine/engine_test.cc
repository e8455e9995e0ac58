#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "engine/engine_loop.h"

namespace fathom {
namespace {

// Every token is its position; a prompt that begins with kNaN fails at its first row, and the
// device after so many steps.
constexpr TokenId kNaN{77};

class CountingExecutor final : public Executor {
 public:
  CountingExecutor(std::atomic<int64_t>* waits, const std::atomic<int64_t>* good_steps,
                   const std::function<void()>* before_failure)
      : waits_(waits), good_steps_(good_steps), before_failure_(before_failure) {}
  void Submit(StepPlans plans) override { steps_.push_back(std::move(plans.groups.at(0))); }
  void SubmitMasks(std::vector<StepMasks>) override { ADD_FAILURE() << "no row is masked"; }
  StepResult Wait() override {
    if (++*waits_ > *good_steps_) {
      (*before_failure_)();
      return {.step = steps_.front().step, .rows = {}, .status = Internal("in step 7, op linear")};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    StepResult result{.step = steps_.front().step, .rows = {}};
    for (const StepRow& row : steps_.front().rows) {
      RowResult& out = result.rows.emplace_back();
      if (!row.is_decode() && row.tokens[0] == kNaN) out.status = Internal("NaN logits");
      int32_t& length = lengths_[row.slot];
      length = (row.is_decode() ? length : row.begin) + row.num_tokens();
      if (row.samples) out.tokens.push_back({.id = TokenId{length}, .logprobs = {}});
      if (row.prompt_logprobs) out.prompt_logprobs.resize(row.num_tokens() - row.samples);
    }
    steps_.pop_front();
    return result;
  }

 private:
  std::atomic<int64_t>* waits_;
  const std::atomic<int64_t>* good_steps_;
  const std::function<void()>* before_failure_;
  std::deque<StepPlan> steps_;
  std::map<SlotId, int32_t> lengths_;
};

// An engine whose outputs are gathered, and can be awaited.
class Harness {
 public:
  explicit Harness(int32_t max_queue = 256, int32_t vocab_size = 0) {
    EngineOptions options;
    options.scheduler = {.max_num_seqs = 4,
                         .max_num_batched_tokens = 64,
                         .prefill_chunk = 32,
                         .num_pages = 12,
                         .max_model_len = 512,
                         .absorbed_limit = 512,
                         .depth = 2};
    options.max_queue = max_queue;
    options.vocab_size = vocab_size;
    engine_ = std::make_unique<Engine>(
        options, std::make_unique<CountingExecutor>(&waits, &good_steps, &before_failure), &clock_,
        [this](std::vector<RequestOutput> outputs) { Take(std::move(outputs)); });
  }
  Engine& engine() { return *engine_; }
  void Destroy() { engine_.reset(); }

  RequestOutput Await(uint64_t id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gathered_[id].finish.has_value(); });
    return gathered_[id];
  }
  void AwaitFirstToken(uint64_t id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !gathered_[id].tokens.empty(); });
  }
  std::map<uint64_t, RequestOutput> gathered() {
    std::lock_guard lock(mutex_);
    return gathered_;
  }

  std::atomic<int64_t> waits = 0;
  std::atomic<int64_t> good_steps = INT64_MAX;
  std::function<void()> before_failure = [] {};

 private:
  void Take(std::vector<RequestOutput> outputs) {
    std::lock_guard lock(mutex_);
    for (RequestOutput& output : outputs) {
      RequestOutput& all = gathered_[Raw(output.id)];
      EXPECT_FALSE(all.finish) << "an output after the last one";
      for (GeneratedToken& token : output.tokens) all.tokens.push_back(std::move(token));
      for (auto& logprobs : output.prompt_logprobs) {
        all.prompt_logprobs.push_back(std::move(logprobs));
      }
      all.finish = output.finish;
      all.error = output.error;
    }
    changed_.notify_all();
  }

  SteadyClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, RequestOutput> gathered_;  // guarded by mutex_
  std::unique_ptr<Engine> engine_;              // dies first
};

GenerateRequest Request(uint64_t id, int32_t prompt_tokens, int32_t max_tokens) {
  GenerateRequest request;
  request.id = RequestId{id};
  request.prompt.assign(prompt_tokens, TokenId{1});
  request.max_tokens = max_tokens;
  return request;
}

std::vector<int32_t> Ids(const RequestOutput& output) {
  std::vector<int32_t> ids;
  for (const GeneratedToken& token : output.tokens) ids.push_back(Raw(token.id));
  return ids;
}

TEST(Engine, GeneratesInOrder) {
  Harness harness;
  harness.engine().Start();
  GenerateRequest request = Request(1, 70, 3);
  request.prompt_logprobs = 0;
  ASSERT_TRUE(harness.engine().Submit(request).ok());
  const RequestOutput output = harness.Await(1);
  EXPECT_EQ(Ids(output), (std::vector<int32_t>{70, 71, 72}));
  EXPECT_EQ(output.finish, FinishReason::kLength);
  EXPECT_EQ(output.prompt_logprobs.size(), 69u);
}

TEST(Engine, FailedRowEndsThatRequestOnly) {
  Harness harness;
  GenerateRequest bad = Request(1, 5, 3);
  bad.prompt[0] = kNaN;
  ASSERT_TRUE(harness.engine().Submit(bad).ok());
  ASSERT_TRUE(harness.engine().Submit(Request(2, 5, 3)).ok());
  harness.engine().Start();
  EXPECT_EQ(harness.Await(1).finish, FinishReason::kError);
  EXPECT_EQ(harness.Await(1).error.message(), "NaN logits");
  EXPECT_TRUE(harness.Await(1).tokens.empty());
  EXPECT_EQ(harness.Await(2).finish, FinishReason::kLength);
}

// Running, prefilling and waiting ones; the steps behind the failed one are not asked for.
TEST(Engine, FailedDeviceEndsEveryRequestAndTakesNoMore) {
  for (int64_t good_steps : {0, 1, 5}) {
    SCOPED_TRACE(good_steps);
    Harness harness;
    harness.good_steps = good_steps;
    std::promise<Status> failed;
    harness.engine().OnFailure([&] { failed.set_value(harness.engine().status()); });
    for (uint64_t id = 1; id <= 9; ++id) {
      ASSERT_TRUE(harness.engine().Submit(Request(id, 40, 100)).ok());
    }
    EXPECT_TRUE(harness.engine().status().ok());
    harness.engine().Start();
    for (uint64_t id = 1; id <= 9; ++id) {
      const RequestOutput output = harness.Await(id);
      EXPECT_EQ(output.finish, FinishReason::kError);
      EXPECT_FALSE(harness.engine().status().ok());
      EXPECT_EQ(output.error.message(), "in step 7, op linear");
    }
    EXPECT_EQ(failed.get_future().get().message(), "in step 7, op linear");
    EXPECT_EQ(harness.waits, good_steps + 1);
    const Status refused = harness.engine().Submit(Request(10, 5, 3));
    EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
    EXPECT_NE(refused.message().find("the engine has failed"), std::string::npos);
    EXPECT_FALSE(harness.engine().HasRoom(1));
    const EngineStats stats = harness.engine().Stats();
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.free_pages, stats.total_pages);
    harness.engine().Cancel(RequestId{1});
    harness.Destroy();
    EXPECT_EQ(harness.gathered().size(), 9u);
  }
}

// As of a lost host, which one thread tells the engine while a step of it fails on another.
TEST(Engine, AStepMayFailWhileTheEngineIsAbandoned) {
  for (int round = 0; round < 200; ++round) {
    Harness harness;
    harness.good_steps = 2;
    harness.before_failure = [&] {
      while (harness.engine().status().ok()) {
      }
    };
    for (uint64_t id = 1; id <= 3; ++id) {
      ASSERT_TRUE(harness.engine().Submit(Request(id, 5, 100)).ok());
    }
    harness.engine().Start();
    while (harness.waits < 3) std::this_thread::yield();
    harness.engine().Abandon(Unavailable("host 1 is silent"));
    for (uint64_t id = 1; id <= 3; ++id) {
      EXPECT_EQ(harness.Await(id).error.message(), "host 1 is silent");
    }
  }
}

TEST(Engine, RequestsThatArriveWhileTheDeviceFailsEnd) {
  Harness harness(1000);
  harness.good_steps = 20;
  harness.engine().Start();
  std::vector<uint64_t> taken;
  for (uint64_t id = 1; harness.engine().Submit(Request(id, 5, 400)).ok() && id < 1000; ++id) {
    taken.push_back(id);
  }
  for (uint64_t id : taken) EXPECT_EQ(harness.Await(id).finish, FinishReason::kError);
}

TEST(Engine, FullQueueRefusesAndHasRoomAgain) {
  Harness harness(2);  // and four slots
  for (uint64_t id = 1; id <= 6; ++id) {
    EXPECT_TRUE(harness.engine().HasRoom(1));
    ASSERT_TRUE(harness.engine().Submit(Request(id, 5, 3)).ok());
  }
  EXPECT_FALSE(harness.engine().HasRoom(1));
  EXPECT_EQ(harness.engine().Submit(Request(7, 5, 3)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(harness.engine().Stats().waiting, 6);
  harness.engine().Start();
  for (uint64_t id = 1; id <= 6; ++id) harness.Await(id);
  EXPECT_TRUE(harness.engine().HasRoom(6));
  EXPECT_FALSE(harness.engine().HasRoom(7));
  EXPECT_EQ(harness.gathered().count(7), 0u);
}

TEST(Engine, BadRequestsAreRefused) {
  Harness harness(256, 1000);
  const auto code = [&](auto change) {
    GenerateRequest request = Request(1, 5, 3);
    change(request);
    return harness.engine().Submit(request).code();
  };
  const auto bad = StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](auto& r) { r.prompt.clear(); }), bad);
  EXPECT_EQ(code([](auto& r) { r.prompt.resize(512); }), bad);
  EXPECT_EQ(code([](auto& r) { r.prompt[2] = TokenId{1000}; }), bad);
  EXPECT_EQ(code([](auto& r) { r.prompt[2] = TokenId{-1}; }), bad);
  EXPECT_EQ(code([](auto& r) { r.stop_tokens = {TokenId{1000}}; }), bad);
  EXPECT_EQ(code([](auto& r) { r.stop_tokens.resize(65); }), bad);
  EXPECT_EQ(code([](auto& r) { r.max_tokens = 0; }), bad);
  EXPECT_EQ(code([](auto& r) { r.min_tokens = 4; }), bad);
  EXPECT_EQ(code([](auto& r) { r.prompt_logprobs = 21; }), bad);
  EXPECT_EQ(code([](auto& r) { r.sampling.logprobs = 21; }), bad);
  EXPECT_EQ(code([](auto& r) { r.sampling.logprob_token_ids = {TokenId{5}}; }), bad);
  const auto named = [&](std::vector<TokenId> ids) {
    return code([&](auto& r) {
      r.sampling.logprobs = 0;
      r.sampling.logprob_token_ids = std::move(ids);
    });
  };
  EXPECT_EQ(named({TokenId{5}, TokenId{1000}}), bad);
  EXPECT_EQ(named({TokenId{-1}}), bad);
  EXPECT_EQ(named(std::vector<TokenId>(kMaxLogprobTokenIds + 1)), bad);
  EXPECT_EQ(code([](auto& r) { r.sampling.logit_bias = {{TokenId{-1}, 1.0f}}; }), bad);
  EXPECT_EQ(code([](auto& r) { r.sampling.logit_bias.resize(kMaxLogitBias + 1); }), bad);
  EXPECT_EQ(code([](auto&) {}), StatusCode::kOk);
  EXPECT_EQ(code([](auto&) {}), bad);  // the id lives
}

TEST(Engine, CancelEndsARequestAndFreesItsPages) {
  Harness harness;
  harness.engine().Start();
  ASSERT_TRUE(harness.engine().Submit(Request(1, 5, 500)).ok());
  harness.AwaitFirstToken(1);
  harness.engine().Cancel(RequestId{1});
  harness.engine().Cancel(RequestId{1});
  harness.engine().Cancel(RequestId{99});
  EXPECT_EQ(harness.Await(1).finish, FinishReason::kCancelled);
  while (harness.engine().Stats().free_pages < 12) std::this_thread::yield();
  EXPECT_EQ(harness.engine().Stats().running, 0);
}

TEST(Engine, DestructionCancelsWhatIsLeft) {
  for (bool started : {true, false}) {
    Harness harness;
    if (started) harness.engine().Start();
    for (uint64_t id = 1; id <= 9; ++id) {
      ASSERT_TRUE(harness.engine().Submit(Request(id, 40, 400)).ok());
    }
    if (started) harness.AwaitFirstToken(1);
    harness.Destroy();
    for (uint64_t id = 1; id <= 9; ++id) {
      EXPECT_EQ(harness.Await(id).finish, FinishReason::kCancelled);
    }
  }
}

TEST(Engine, IdleEngineDoesNotTurn) {
  Harness harness;
  harness.engine().Start();
  ASSERT_TRUE(harness.engine().Submit(Request(1, 5, 3)).ok());
  harness.Await(1);
  while (harness.engine().Stats().running > 0) std::this_thread::yield();
  const std::clock_t before = std::clock();
  const int64_t waits = harness.waits;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(harness.waits, waits);
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.05);
}

// One runs until the end of its time; one behind it may wait for 10 s, and says how long it has.
TEST(EngineLoop, RequestsWaitNoLongerThanTheyMay) {
  std::atomic<int64_t> waits = 0, good_steps = INT64_MAX;
  const std::function<void()> nothing = [] {};
  CountingExecutor executor(&waits, &good_steps, &nothing);
  VirtualClock clock;
  std::map<uint64_t, RequestOutput> last;
  std::map<uint64_t, int64_t> queued_ns;
  EngineLoop loop({.scheduler = {.max_num_seqs = 1,
                                 .max_num_batched_tokens = 64,
                                 .prefill_chunk = 32,
                                 .num_pages = 12,
                                 .max_model_len = 512,
                                 .absorbed_limit = 512},
                   .queue_timeout_s = 10},
                  &executor, &clock, [&](std::vector<RequestOutput> outputs) {
                    for (RequestOutput& output : outputs) {
                      queued_ns[Raw(output.id)] += output.queued_ns;
                      last[Raw(output.id)] = std::move(output);
                    }
                  });
  ASSERT_TRUE(loop.Submit(Request(1, 5, 100)).ok());
  ASSERT_TRUE(loop.Submit(Request(2, 5, 100)).ok());
  while (last[1].tokens.empty()) loop.Step();
  clock.AdvanceNs(9'000'000'000);
  ASSERT_TRUE(loop.Submit(Request(3, 5, 100)).ok());
  loop.Step();
  EXPECT_FALSE(last[2].finish);
  clock.AdvanceNs(2'000'000'000);
  loop.Step();
  EXPECT_EQ(last[2].finish, FinishReason::kError);
  EXPECT_EQ(last[2].error.code(), StatusCode::kUnavailable);
  EXPECT_NE(last[2].error.message().find("waited 11.0 s"), std::string::npos);
  EXPECT_FALSE(last[1].finish);  // which has been at work for longer
  EXPECT_FALSE(last[3].finish);
  EXPECT_EQ(loop.Stats().waiting, 1);
  while (loop.Step()) {
  }
  EXPECT_EQ(last[1].finish, FinishReason::kLength);
  EXPECT_EQ(last[3].finish, FinishReason::kLength);
  EXPECT_EQ(queued_ns, (std::map<uint64_t, int64_t>{{1, 0}, {2, 0}, {3, 2'000'000'000}}));
  const TokensOfSteps sizes = loop.Stats().tokens_of_steps;
  EXPECT_EQ(sizes.tokens, 5 + 99 + 5 + 99);  // the last token of each is not computed
  EXPECT_EQ(sizes.steps[0], 2 * 99);
  EXPECT_EQ(sizes.steps[1], 2);
}

// Threads that submit, cancel and ask at once; run under ThreadSanitizer by
// tools/run_sanitizers.sh.
TEST(Engine, ManyThreads) {
  Harness harness(1000);
  harness.engine().Start();
  constexpr int kThreads = 4, kEach = 60;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const uint64_t id = t * kEach + i;
        EXPECT_TRUE(harness.engine().Submit(Request(id, 1 + i, 10)).ok());
        if (i % 5 == 0) harness.engine().Cancel(RequestId{id});
        EXPECT_GE(harness.engine().Stats().free_pages, 0);
        EXPECT_TRUE(harness.engine().HasRoom(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kEach; ++i) {
      const RequestOutput output = harness.Await(t * kEach + i);
      std::vector<int32_t> expected;
      for (int32_t at = 1 + i; at < 11 + i; ++at) expected.push_back(at);
      if (output.finish == FinishReason::kCancelled) {
        EXPECT_EQ(i % 5, 0);
        expected.resize(output.tokens.size());
      }
      EXPECT_EQ(Ids(output), expected);
    }
  }
}

}  // namespace
}  // namespace fathom
