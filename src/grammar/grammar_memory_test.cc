// What grammars and those who wait for them hold, and who pays for it.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <latch>
#include <new>
#include <thread>

#include "base/thread_bytes.h"
#include "grammar/byte_vocabulary.h"
#include "grammar/compile_limit.h"
#include "grammar/fake_grammar.h"
#include "grammar/grammar_compiler.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

using Made = GrammarCompiler::Made;

GrammarSpec Regex(std::string text) {
  return {GrammarKind::kRegex, std::move(text)};
}

// Takes as many bytes as the text says.
Made OfText(const GrammarSpec& spec) {
  return OfBytes(std::stoul(spec.text));
}

Made Wait(GrammarCompiler& compiler, const std::string& text, uint64_t client = 0) {
  std::promise<Made> made;
  const auto wanted = compiler.Get(
      Regex(text), [&](Made result) { made.set_value(std::move(result)); }, client);
  return made.get_future().get();
}

// A share is 1000, and so is the cache.
constexpr GrammarCompilerOptions kSmall = {
    .threads = 1, .compile_bytes = 100, .cache_bytes = 5000, .grammar_bytes = 4000};

TEST(GrammarMemoryTest, GrammarsInUseAreBounded) {
  GrammarCompiler compiler(OfText, kSmall);
  std::vector<std::shared_ptr<const Grammar>> in_use;
  for (uint64_t client = 0; client < 4; ++client) {
    in_use.push_back(*Wait(compiler, std::to_string(997 + client), client));
  }
  EXPECT_EQ(compiler.grammar_bytes(), 3994u);
  const Made refused = Wait(compiler, "7", 9);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("all clients'"), std::string::npos);
  EXPECT_TRUE(Wait(compiler, "6", 9).ok());
  in_use.pop_back();
  EXPECT_TRUE(Wait(compiler, "7", 9).ok());
}

// One client had all of it, and every other's first form was refused.
TEST(GrammarMemoryTest, AClientHasAQuarter) {
  GrammarCompiler compiler(OfText, kSmall);
  auto first = *Wait(compiler, "400", 1), second = *Wait(compiler, "401", 1);
  const Made refused = Wait(compiler, "200", 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("your requests"), std::string::npos);
  EXPECT_TRUE(Wait(compiler, "199", 1).ok());
  EXPECT_TRUE(Wait(compiler, "200", 2).ok());
  EXPECT_EQ(*Wait(compiler, "401", 1), second);  // what lives costs nothing more
  first = nullptr;
  second = nullptr;
  EXPECT_TRUE(Wait(compiler, "201", 1).ok());
}

// Nobody is refused for what the cache alone holds.
TEST(GrammarMemoryTest, WhatIsOnlyKeptGoesFirst) {
  GrammarCompiler compiler(OfText, kSmall);
  const auto held = *Wait(compiler, "600", 1);
  ASSERT_TRUE(Wait(compiler, "300", 1).ok());
  EXPECT_EQ(compiler.grammar_bytes(), 900u);
  EXPECT_TRUE(Wait(compiler, "200", 1).ok());
  EXPECT_EQ(compiler.grammar_bytes(), 800u);
}

TEST(GrammarMemoryTest, TheCacheHasAQuarterAtMost) {
  GrammarCompiler compiler(OfText, kSmall);
  ASSERT_TRUE(Wait(compiler, "600", 1).ok());
  ASSERT_TRUE(Wait(compiler, "500", 2).ok());
  EXPECT_EQ(compiler.grammar_bytes(), 500u);
}

// Grammars that requests hold may outlive the server's compilers.
TEST(GrammarMemoryTest, GrammarsOutliveTheirCompiler) {
  std::shared_ptr<const Grammar> held;
  {
    GrammarCompiler compiler(OfText, kSmall);
    held = *Wait(compiler, "10");
  }
  EXPECT_EQ(held->bytes(), 10u);
}

// It ended the process, or was kept as a refusal of the grammar.
TEST(GrammarMemoryTest, WithoutMemoryItIsToBeTriedAgain) {
  int calls = 0;
  GrammarCompiler compiler(
      [&](const GrammarSpec& spec) -> Made {
        if (++calls == 1) throw std::bad_alloc();
        return OfText(spec);
      },
      kSmall);
  const Made refused = Wait(compiler, "1");
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("memory"), std::string::npos);
  EXPECT_TRUE(Wait(compiler, "1").ok());
}

// xgrammar's asks its limit wherever it works, here as it makes one automaton, and rules.
TEST(GrammarMemoryTest, XgrammarSaysThatThereIsNoMemory) {
  const GrammarCompiler::Compile compile = MakeXgrammarCompile(ByteVocabulary());
  for (const GrammarSpec& spec : {Regex("[a-z]{1,20}"), GrammarSpec{GrammarKind::kJsonObject}}) {
    bool thrown = false;
    const CompileLimit limit(std::chrono::hours(1), size_t{1} << 40, [&thrown] {
      if (!std::exchange(thrown, true)) throw std::bad_alloc();
      return false;
    });
    EXPECT_THROW((void)compile(spec), std::bad_alloc) << spec.text;
    EXPECT_TRUE(compile(spec).ok()) << spec.text;
  }
}

// A compiler that is held up while "0" is compiled.
struct Held {
  std::latch begun{1}, go{1};
  Made operator()(const GrammarSpec& spec) {
    if (spec.text == "0") begun.count_down(), go.wait();
    return OfText(spec);
  }
};

// They were kept until the grammar was made, with the connections that they have.
TEST(GrammarMemoryTest, WhoLeftIsLetGoWhileOthersWait) {
  Held held;
  GrammarCompiler compiler([&](const GrammarSpec& spec) { return held(spec); }, kSmall);
  const auto slow = compiler.Get(Regex("0"), [](const Made&) {});
  held.begun.wait();
  std::promise<Made> made;
  const auto waits = compiler.Get(Regex("1"), [&](Made result) { made.set_value(result); });
  const auto captured = std::make_shared<int>();
  for (int i = 0; i < 100; ++i) {
    const auto leaves = compiler.Get(Regex("1"), [captured](const Made&) {});
    EXPECT_LE(captured.use_count(), 2);
  }
  held.go.count_down();
  EXPECT_TRUE(made.get_future().get().ok());
}

// Whoever joins a grammar of a client without room pays for it, and is not refused with that one.
TEST(GrammarMemoryTest, WhoHasRoomPays) {
  Held held;
  GrammarCompiler compiler([&](const GrammarSpec& spec) { return held(spec); }, kSmall);
  const auto full = *Wait(compiler, "1000", 1);
  const auto slow = compiler.Get(
      Regex("0"), [](const Made&) {}, 3);
  held.begun.wait();
  std::promise<Made> refused, first, second;
  const auto own = compiler.Get(
      Regex("5"), [&](Made got) { refused.set_value(got); }, 1);
  const auto with_other = compiler.Get(
      Regex("990"), [&](Made got) { first.set_value(got); }, 1);
  const auto other = compiler.Get(
      Regex("990"), [&](Made got) { second.set_value(got); }, 2);
  held.go.count_down();
  EXPECT_EQ(refused.get_future().get().status().code(), StatusCode::kUnavailable);
  const auto paid = *second.get_future().get();
  EXPECT_EQ(*first.get_future().get(), paid);
  const auto more = *Wait(compiler, "10", 2);
  EXPECT_FALSE(Wait(compiler, "6", 2).ok());
}

// Of two whose form was not compiled, the one that held nothing was told of the other's grammars.
TEST(GrammarMemoryTest, WhoIsRefusedIsToldWhy) {
  std::latch begun(1), go(1);
  GrammarCompiler compiler(
      [&](const GrammarSpec& spec) {
        if (spec.text == "12") begun.count_down(), go.wait();
        return OfText(spec);
      },
      kSmall);
  std::vector<Made> held = {Wait(compiler, "1000", 1)};
  for (const uint64_t client : {5, 6, 7}) {
    held.push_back(Wait(compiler, std::to_string(990 + client), client));
  }
  std::promise<Made> last, mine, others;
  const auto slow = compiler.Get(
      Regex("12"), [&](Made got) { last.set_value(got); }, 3);
  begun.wait();
  const auto own = compiler.Get(
      Regex("5"), [&](Made got) { mine.set_value(got); }, 1);
  const auto other = compiler.Get(
      Regex("5"), [&](Made got) { others.set_value(got); }, 2);
  go.count_down();
  held.push_back(last.get_future().get());
  EXPECT_NE(mine.get_future().get().status().message().find("one client"), std::string::npos);
  EXPECT_NE(others.get_future().get().status().message().find("all clients'"), std::string::npos);
}

// Nobody wanted it, another began, and both were made: the cache had two, of which one never went.
TEST(GrammarMemoryTest, ALateGrammarIsKeptOnce) {
  std::latch late_begun(1), late_go(1), begun(1), go(1);
  std::atomic<int> calls = 0;
  GrammarCompilerOptions options = kSmall;
  options.threads = 2;
  GrammarCompiler compiler(
      [&](const GrammarSpec& spec) {
        if (spec.text != "300") return OfText(spec);
        const bool late = ++calls == 1;
        (late ? late_begun : begun).count_down();
        (late ? late_go : go).wait();
        return OfText(spec);
      },
      options);
  auto leaves = compiler.Get(Regex("300"), [](const Made&) {});
  late_begun.wait();
  leaves = nullptr;
  std::promise<Made> made;
  const auto waits = compiler.Get(Regex("300"), [&](Made result) { made.set_value(result); });
  begun.wait();
  late_go.count_down();
  while (compiler.grammar_bytes() == 0) std::this_thread::yield();
  go.count_down();
  const auto grammar = *made.get_future().get();
  EXPECT_EQ(*Wait(compiler, "300"), grammar);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(compiler.grammar_bytes(), 300u);
}

// One that nobody wanted had those who came behind begin a third of what was being compiled.
TEST(GrammarMemoryTest, ALateEndLeavesWhatTookItsPlace) {
  std::latch late_begun(1), late_go(1), begun(1), go(1);
  std::atomic<int> calls = 0;
  GrammarCompilerOptions options = kSmall;
  options.threads = 2;
  GrammarCompiler compiler(
      [&](const GrammarSpec& spec) -> Made {
        if (spec.text != "300") return OfText(spec);
        if (++calls == 1) {
          late_begun.count_down(), late_go.wait();
          return Cancelled("nobody waits");
        }
        if (calls == 2) begun.count_down(), go.wait();
        return OfText(spec);
      },
      options);
  auto leaves = compiler.Get(Regex("300"), [](const Made&) {});
  late_begun.wait();
  leaves = nullptr;
  std::promise<Made> first, second;
  const auto waits = compiler.Get(Regex("300"), [&](Made got) { first.set_value(got); });
  begun.wait();
  late_go.count_down();
  ASSERT_TRUE(Wait(compiler, "1").ok());  // by the late one's thread
  const auto joins = compiler.Get(Regex("300"), [&](Made got) { second.set_value(got); });
  go.count_down();
  EXPECT_TRUE(first.get_future().get().ok() && second.get_future().get().ok());
  EXPECT_EQ(calls, 2);
}

// A parser knew of every rule's states by their number among those of all rules: an answer to a
// schema with 200 branches took 7 MB as it began.
TEST(GrammarMemoryTest, AnAnswerToManyBranchesTakesLittle) {
  std::string schema = R"({"anyOf":[)";
  for (int i = 0; i < 200; ++i) {
    schema += fmt::format(R"({}{{"type":"object","properties":{{"kind":{{"const":"k{}"}},)"
                          R"("size{}":{{"type":"number"}}}},"required":["kind"],)"
                          R"("additionalProperties":false}})",
                          i > 0 ? "," : "", i, i);
  }
  const Made grammar = MakeXgrammarCompile(ByteVocabulary())(
      {.kind = GrammarKind::kJsonSchema, .text = schema + "]}"});
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  EXPECT_TRUE(TakesBytes(**grammar, R"({"kind":"k77","size77":3})"));
  EXPECT_FALSE(TakesBytes(**grammar, R"({"kind":"k77","size78":3})"));
  const int64_t before = ThreadBytes();
  const auto state = (*grammar)->Start().value();
  std::vector<uint32_t> words(MaskWords(257));
  ASSERT_TRUE(state->FillMask(words).ok());
  EXPECT_LT(ThreadBytes() - before, 400'000);
}

}  // namespace
}  // namespace fathom
