#include "grammar/grammar_compiler.h"
#include "grammar/fake_grammar.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <latch>
#include <map>

#include "grammar/compile_limit.h"

namespace fathom {
namespace {

using std::chrono::milliseconds;

GrammarSpec Regex(std::string text) {
  return {GrammarKind::kRegex, std::move(text)};
}

GrammarCompiler::Made Wait(GrammarCompiler& compiler, const GrammarSpec& spec) {
  std::promise<GrammarCompiler::Made> made;
  const auto wanted =
      compiler.Get(spec, [&](GrammarCompiler::Made result) { made.set_value(std::move(result)); });
  return made.get_future().get();
}

// Counts, and takes as many bytes as the text says.
struct Counting {
  std::atomic<int>* calls;
  GrammarCompiler::Made operator()(const GrammarSpec& spec) const {
    ++*calls;
    return OfBytes(std::stoul(spec.text));
  }
};

TEST(GrammarCompilerTest, LeavesCoresToOthers) {
  std::atomic<int> niceness = 0;
  const auto tells = [&](const GrammarSpec&) -> GrammarCompiler::Made {
    niceness = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
    return OfBytes(1);
  };
  GrammarCompiler compiler(tells, {});
  ASSERT_TRUE(Wait(compiler, Regex("1")).ok());
  const int own = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
  EXPECT_GE(niceness, std::min(own + 1, 19));
}

TEST(GrammarCompilerTest, KeepsTheLatestUsed) {
  std::atomic<int> calls = 0;
  GrammarCompiler compiler(Counting{&calls}, {.cache_bytes = 1000, .cache_entries = 3});
  const auto first = *Wait(compiler, Regex("1"));
  EXPECT_EQ(*Wait(compiler, Regex("1")), first);
  EXPECT_EQ(calls, 1);
  GrammarSpec schema{GrammarKind::kJsonSchema, "1"}, strict{GrammarKind::kJsonSchema, "1", true};
  EXPECT_FALSE(
      Wait(compiler, schema).ok());  // a number is no schema; and what is checked is not kept
  EXPECT_EQ(calls, 1);
  for (const char* text : {"2", "3"}) ASSERT_TRUE(Wait(compiler, Regex(text)).ok());
  ASSERT_TRUE(Wait(compiler, Regex("1")).ok());
  ASSERT_TRUE(Wait(compiler, Regex("4")).ok());  // 2 goes
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(*Wait(compiler, Regex("1")), first);
  EXPECT_EQ(calls, 4);
  ASSERT_TRUE(Wait(compiler, Regex("2")).ok());
  EXPECT_EQ(calls, 5);
  ASSERT_TRUE(Wait(compiler, Regex("995")).ok());  // leaves no room for others
  ASSERT_TRUE(Wait(compiler, Regex("1")).ok());
  EXPECT_EQ(calls, 7);
  ASSERT_TRUE(Wait(compiler, Regex("2000")).ok());  // is not kept
  ASSERT_TRUE(Wait(compiler, Regex("2000")).ok());
  EXPECT_EQ(calls, 9);
}

// It had a thread for up to 10 s more, and a place in the queue.
TEST(GrammarCompilerTest, WhatNobodyWaitsForIsGivenUp) {
  std::latch begun(1);
  std::promise<Status> given_up;
  GrammarCompiler compiler(
      [&](const GrammarSpec& spec) -> GrammarCompiler::Made {
        if (spec.text == "slow") {
          begun.count_down();
          while (CompileLimit::Check().ok()) {
          }
          given_up.set_value(CompileLimit::Check());
        }
        EXPECT_NE(spec.text, "behind it");
        return OfBytes(1);
      },
      {.threads = 1, .max_waiting = 1, .compile_time = std::chrono::hours(1)});
  auto slow = compiler.Get(Regex("slow"), [](const auto&) {});
  begun.wait();
  auto behind = compiler.Get(Regex("behind it"), [](const auto&) {});
  behind = nullptr;
  std::promise<GrammarCompiler::Made> made;
  const auto wanted =
      compiler.Get(Regex("wanted"), [&](auto result) { made.set_value(std::move(result)); });
  slow = nullptr;
  EXPECT_EQ(given_up.get_future().get().code(), StatusCode::kCancelled);
  EXPECT_TRUE(made.get_future().get().ok());
}

// Who asked for many had all others wait behind them, or turned away.
TEST(GrammarCompilerTest, ClientsTakeTurns) {
  std::vector<std::string> compiled;
  std::latch begun(1), go(1);
  const auto compile = [&](const GrammarSpec& spec) -> GrammarCompiler::Made {
    compiled.push_back(spec.text);
    if (spec.text == "a0") begun.count_down(), go.wait();
    return OfBytes(1);
  };
  std::vector<std::shared_ptr<const void>> wanted;
  std::map<std::string, std::promise<GrammarCompiler::Made>> made;
  GrammarCompiler compiler(compile, {.threads = 1, .max_waiting = 4});
  const auto ask = [&](uint64_t client, const std::string& text) {
    auto& result = made[text];
    wanted.push_back(compiler.Get(
        Regex(text), [&result](auto got) { result.set_value(std::move(got)); }, client));
  };
  ask(1, "a0");
  begun.wait();
  for (const char* text : {"a1", "a2", "a3", "a4", "a5"}) ask(1, text);
  for (const char* text : {"b1", "b2", "b3"}) ask(2, text);
  for (const char* text : {"a5", "a4", "a3", "b3"}) {
    EXPECT_EQ(made[text].get_future().get().status().code(), StatusCode::kUnavailable) << text;
  }
  go.count_down();
  for (const char* text : {"a0", "a1", "a2", "b1", "b2"}) {
    EXPECT_TRUE(made[text].get_future().get().ok()) << text;
  }
  EXPECT_EQ(compiled, (std::vector<std::string>{"a0", "a1", "b1", "a2", "b2"}));
}

// Who asks for what another asked for too had that one's place, behind all that it waited for.
TEST(GrammarCompilerTest, WhoJoinsWaitsNoLongerThanForOneOfTheirOwn) {
  std::vector<std::string> compiled;
  std::latch begun(1), go(1), done(6);
  const auto compile = [&](const GrammarSpec& spec) -> GrammarCompiler::Made {
    compiled.push_back(spec.text);
    if (spec.text == "a0") begun.count_down(), go.wait();
    return OfBytes(1);
  };
  std::vector<std::shared_ptr<const void>> wanted;
  GrammarCompiler compiler(compile, {.threads = 1});
  const auto ask = [&](uint64_t client, const std::string& text) {
    wanted.push_back(compiler.Get(
        Regex(text), [&](auto) { done.count_down(); }, client));
  };
  ask(1, "a0");
  begun.wait();
  for (const char* text : {"a1", "a2", "both"}) ask(1, text);
  for (const char* text : {"both", "b1"}) ask(2, text);  // which takes its turn
  go.count_down();
  done.wait();
  EXPECT_EQ(compiled, (std::vector<std::string>{"a0", "a1", "both", "a2", "b1"}));
}

// Whoever comes later is not before those that have waited for their turn.
TEST(GrammarCompilerTest, NobodyComesBeforeTheTurnThatIsTaken) {
  std::vector<std::string> compiled;
  std::latch first_begun(1), first_go(1), begun(1), go(1), done(4);
  const auto compile = [&](const GrammarSpec& spec) -> GrammarCompiler::Made {
    compiled.push_back(spec.text);
    if (spec.text == "a0") first_begun.count_down(), first_go.wait();
    if (spec.text == "a1") begun.count_down(), go.wait();
    return OfBytes(1);
  };
  std::vector<std::shared_ptr<const void>> wanted;
  GrammarCompiler compiler(compile, {.threads = 1});
  const auto ask = [&](uint64_t client, const std::string& text) {
    wanted.push_back(compiler.Get(
        Regex(text), [&](auto) { done.count_down(); }, client));
  };
  ask(1, "a0");
  first_begun.wait();
  for (const char* text : {"a1", "a2"}) ask(1, text);
  first_go.count_down();
  begun.wait();
  ask(2, "b1");
  go.count_down();
  done.wait();
  EXPECT_EQ(compiled, (std::vector<std::string>{"a0", "a1", "a2", "b1"}));
}

// One that takes seconds to be refused had a thread each time that it was asked for.
TEST(GrammarCompilerTest, KeepsWhyACompilerRefusedForAWhile) {
  std::atomic<int> calls = 0;
  const auto refuses = [&](const GrammarSpec& spec) -> GrammarCompiler::Made {
    ++calls;
    if (spec.text == "failed") return Internal("this is no refusal");
    return InvalidArgument("{} is too slow", spec.text);
  };
  GrammarCompiler compiler(refuses, {.max_refusals = 2});
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(Wait(compiler, Regex("a")).status().message(), "a is too slow");
  }
  EXPECT_EQ(calls, 1);
  for (const char* text : {"b", "a", "c", "b", "c", "a"}) (void)Wait(compiler, Regex(text));
  EXPECT_EQ(calls, 4);  // two are kept, and c took a's place
  for (int round = 0; round < 2; ++round) (void)Wait(compiler, Regex("failed"));
  EXPECT_EQ(calls, 6);
  GrammarCompiler forgets(refuses, {.refusal_kept = milliseconds(0)});
  for (int round = 0; round < 2; ++round) (void)Wait(forgets, Regex("a"));
  EXPECT_EQ(calls, 8);
}

TEST(GrammarCompilerTest, StrictnessAndKindAreOfTheKey) {
  std::atomic<int> calls = 0;
  GrammarCompiler compiler(
      [&](const GrammarSpec&) -> GrammarCompiler::Made {
        ++calls;
        return OfBytes(1);
      },
      {});
  for (int round = 0; round < 2; ++round) {
    for (const GrammarSpec& spec :
         {GrammarSpec{GrammarKind::kJsonSchema, "{}"},
          GrammarSpec{GrammarKind::kJsonSchema, "{}", true}, GrammarSpec{GrammarKind::kEbnf, "{}"},
          GrammarSpec{GrammarKind::kJsonObject}}) {
      EXPECT_TRUE(Wait(compiler, spec).ok());
    }
  }
  EXPECT_EQ(calls, 4);
}

// Those who ask for what is being compiled wait for it; others beyond the queue are turned away,
// and so is what gets no turn by its deadline.
TEST(GrammarCompilerTest, OneCompilesForAllAndTheQueueIsBounded) {
  std::atomic<int> calls = 0;
  std::latch begun(1), go(1);
  GrammarCompiler compiler(
      [&](const GrammarSpec& spec) -> GrammarCompiler::Made {
        ++calls;
        if (spec.text == "slow") begun.count_down(), go.wait();
        return OfBytes(1);
      },
      {.threads = 1, .max_waiting = 1, .deadline = milliseconds(300)});
  std::vector<std::promise<GrammarCompiler::Made>> made(4);
  std::vector<std::shared_ptr<const void>> wanted;
  const auto ask = [&](int i, const std::string& text) {
    wanted.push_back(compiler.Get(
        Regex(text), [&made, i](auto result) { made[i].set_value(std::move(result)); }));
  };
  ask(0, "slow");
  begun.wait();
  ask(1, "slow");
  ask(2, "late");
  ask(3, "refused");
  EXPECT_EQ(made[3].get_future().get().status().code(), StatusCode::kUnavailable);
  std::this_thread::sleep_for(milliseconds(350));
  go.count_down();
  EXPECT_EQ(*made[0].get_future().get(), *made[1].get_future().get());
  EXPECT_EQ(made[2].get_future().get().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace fathom
