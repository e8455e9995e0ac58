#include "grammar/compile_limit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "grammar/grammar_pace.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

using std::chrono::milliseconds;

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

GrammarCompiler::Compile Compiler() {
  GrammarVocabulary vocabulary{.tokens = {"<eos>"}, .eos = {TokenId{0}}, .size = 257};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  }
  return MakeXgrammarCompile(vocabulary);
}

TEST(CompileLimit, IsOfTheThreadsOwnWork) {
  std::atomic<bool> stopping = false;
  EXPECT_TRUE(CompileLimit::Check().ok());
  {
    const CompileLimit limit(milliseconds(20), stopping);
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

// It had one of two threads for minutes, whoever had left.
TEST(CompileLimit, ACompilerGivesUp) {
  const GrammarCompiler::Compile compile = Compiler();
  const std::atomic<bool> stopping = false;
  const CompileLimit limit(milliseconds(100), stopping);
  const GrammarCompiler::Made made = compile(Slow());
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().message(), "the grammar takes more than 0.1 s to compile: simplify it");
}

// The end of the server waited for it.
TEST(CompileLimit, NobodyWaitsForACompilerAtTheEnd) {
  std::promise<GrammarCompiler::Made> made;
  {
    const auto slow = [compile = Compiler()](const GrammarSpec&) { return compile(Slow()); };
    GrammarCompiler compiler(slow, {.compile_time = std::chrono::hours(1)});
    compiler.Get({.kind = GrammarKind::kJsonSchema, .text = "{}"},
                 [&](GrammarCompiler::Made result) { made.set_value(std::move(result)); });
    std::this_thread::sleep_for(milliseconds(200));
  }
  EXPECT_EQ(made.get_future().get().status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace fathom
