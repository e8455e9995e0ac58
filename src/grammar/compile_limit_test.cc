#include "grammar/compile_limit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "base/thread_bytes.h"
#include "grammar/grammar_pace.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

using std::chrono::milliseconds;

constexpr size_t kNoLimit = size_t{1} << 40;  // of bytes
constexpr auto kWaited = [] { return false; };

// Its masks take minutes.
GrammarSpec Slow() {
  std::string properties, required;
  for (int i = 0; i < 300; ++i) {
    const char* comma = i > 0 ? "," : "";
    properties += fmt::format(R"({}"p{}":{{"type":"string","maxLength":{}}})", comma, i, 9000 + i);
    required += fmt::format(R"({}"p{}")", comma, i);
  }
  return {.kind = GrammarKind::kJsonSchema,
          .text = fmt::format(R"({{"type":"object","properties":{{{}}},"required":[{}]}})",
                              properties, required)};
}

// Its automata take as long.
GrammarSpec SlowAutomata() {
  std::string properties;
  for (int i = 0; i < 900; ++i) {
    properties += fmt::format(R"({}"p{}":{{"type":"string","pattern":"^[a-z]{{1,{}}}$"}})",
                              i > 0 ? "," : "", i, 9000 + i);
  }
  return {.kind = GrammarKind::kJsonSchema, .text = "{\"properties\":{" + properties + "}}"};
}

// Each reference has all the values once more: 1.6 GB for a schema as large as one may be.
GrammarSpec Large() {
  std::string values = "\"v\"", properties = "\"p\":{}", required = "\"p\"";
  for (int i = 0; i < 1000; ++i) {
    values += fmt::format(R"(,"value {}")", i);
    properties += fmt::format(R"(,"p{}":{{"$ref":"#/$defs/e"}})", i);
    required += fmt::format(R"(,"p{}")", i);
  }
  return {.kind = GrammarKind::kJsonSchema,
          .text = fmt::format(R"({{"$defs":{{"e":{{"enum":[{}]}}}},"properties":{{{}}},)"
                              R"("required":[{}]}})",
                              values, properties, required)};
}

GrammarCompiler::Compile Compiler() {
  GrammarVocabulary vocabulary{.tokens = {"<eos>"}, .eos = {TokenId{0}}, .size = 257};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  }
  return MakeXgrammarCompile(vocabulary);
}

TEST(CompileLimit, IsOfTheThreadsOwnWork) {
  bool stopping = false;
  EXPECT_TRUE(CompileLimit::Check().ok());
  {
    const CompileLimit limit(milliseconds(20), kNoLimit, [&] { return stopping; });
    std::this_thread::sleep_for(milliseconds(40));
    EXPECT_TRUE(CompileLimit::Check().ok());
    for (const int64_t end_ns = ThreadNs() + 25'000'000; ThreadNs() < end_ns;) {
    }
    EXPECT_EQ(CompileLimit::Check().code(), StatusCode::kInvalidArgument);
    stopping = true;
    EXPECT_EQ(CompileLimit::Check().code(), StatusCode::kCancelled);
  }
  EXPECT_TRUE(CompileLimit::Check().ok());
}

// Whatever it has already.
TEST(CompileLimit, IsOfWhatTheThreadTakes) {
  const std::string before(1 << 20, 'x');
  const CompileLimit limit(std::chrono::hours(1), 100'000, kWaited);
  std::string taken(90'000, 'x');
  EXPECT_TRUE(CompileLimit::Check().ok());
  const std::string more(90'000, 'x');
  EXPECT_EQ(CompileLimit::Check().code(), StatusCode::kInvalidArgument);
  std::string().swap(taken);
  EXPECT_TRUE(CompileLimit::Check().ok());
}

// It had one of two threads for minutes, whoever had left.
TEST(CompileLimit, ACompilerGivesUp) {
  const GrammarCompiler::Compile compile = Compiler();
  for (const GrammarSpec& slow : {Slow(), SlowAutomata()}) {
    const CompileLimit limit(milliseconds(100), kNoLimit, kWaited);
    const GrammarCompiler::Made made = compile(slow);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().message(), "the grammar takes more than 0.1 s to compile: simplify it");
  }
}

// It took as much as there was.
TEST(CompileLimit, ACompilerTakesSoMuchMemory) {
  const GrammarCompiler::Compile compile = Compiler();
  const int64_t before = ThreadBytes();
  const CompileLimit limit(std::chrono::hours(1), size_t{32} << 20, kWaited);
  const GrammarCompiler::Made made = compile(Large());
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().message(), "the grammar takes more than 32 MiB to compile: simplify it");
  EXPECT_LE(ThreadBytes() - before, int64_t{1} << 20);  // given back, but for tables
}

// Automata have a mask for each state; rules do with fewer.
TEST(CompileLimit, WhatIsTooMuchAsAnAutomatonStaysRules) {
  const GrammarCompiler::Compile compile = Compiler();
  ASSERT_TRUE(compile({.kind = GrammarKind::kRegex, .text = "a"}).ok());  // but for tables
  std::string text = "root ::= \"(\" root \")\" | p0\np39 ::= \"x\"";
  for (int i = 0; i < 39; ++i) text += fmt::format("\np{} ::= [a-z]{{40}} p{}", i, i + 1);
  const GrammarSpec spec{.kind = GrammarKind::kEbnf, .text = text};
  const auto takes = [&](size_t bytes) {
    const CompileLimit limit(std::chrono::hours(1), bytes, kWaited);
    const int64_t before = ThreadBytes();
    const auto made = compile(spec);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return ThreadBytes() - before;
  };
  const int64_t automaton = takes(size_t{1} << 30);
  const int64_t rules = takes(static_cast<size_t>(automaton / 2));
  EXPECT_LT(rules, automaton / 2);
}

// Wherever that is.
TEST(CompileLimit, WhatIsGivenUpLeavesNothing) {
  const GrammarCompiler::Compile compile = Compiler();
  ASSERT_TRUE(compile({.kind = GrammarKind::kRegex, .text = "a"}).ok());  // but for tables
  for (const GrammarSpec& spec : {Slow(), SlowAutomata(), Large()}) {
    for (int end = 1; end < 300; end += 1 + end / 4) {
      const int64_t before = ThreadBytes();
      int asked = 0;
      {
        const CompileLimit limit(std::chrono::hours(1), kNoLimit, [&] { return ++asked >= end; });
        ASSERT_EQ(compile(spec).status().code(), StatusCode::kCancelled);
      }
      EXPECT_NEAR(static_cast<double>(ThreadBytes() - before), 0, 10'000) << end;
    }
  }
}

// The cache counted half of it.
TEST(CompileLimit, AGrammarSaysWhatItHolds) {
  const GrammarCompiler::Compile compile = Compiler();
  ASSERT_TRUE(compile({.kind = GrammarKind::kRegex, .text = "a"}).ok());  // and the tables
  const int64_t before = ThreadBytes();
  const GrammarCompiler::Made made = compile({.kind = GrammarKind::kJsonObject});
  ASSERT_TRUE(made.ok());
  EXPECT_NEAR(static_cast<double>((*made)->bytes()), static_cast<double>(ThreadBytes() - before),
              1000);
}

// The end of the server waited for it.
TEST(CompileLimit, NobodyWaitsForACompilerAtTheEnd) {
  std::promise<GrammarCompiler::Made> made;
  std::shared_ptr<const void> wanted;
  {
    const auto slow = [compile = Compiler()](const GrammarSpec&) { return compile(Slow()); };
    GrammarCompiler compiler(slow,
                             {.compile_time = std::chrono::hours(1), .compile_bytes = kNoLimit});
    wanted = compiler.Get({.kind = GrammarKind::kJsonSchema, .text = "{}"},
                          [&](GrammarCompiler::Made result) { made.set_value(std::move(result)); });
    std::this_thread::sleep_for(milliseconds(200));
  }
  EXPECT_EQ(made.get_future().get().status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace fathom
