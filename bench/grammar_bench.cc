// What a grammar costs a step: Accept() of a token and FillMask() of the next, on one core, at each
// token of an answer; and what compiling it took. Then 128 rows of a step, on one thread and shared
// by several, beside what writing as many bytes takes. Answers are written byte by byte into tokens
// by the longest token that goes on with the text.
//
//     ninja -C build grammar_bench && build/bin/grammar_bench FOLDER-WITH-tokenizer.json
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/thread_bytes.h"
#include "base/token_mask.h"
#include "cpu/cpu_count.h"
#include "cpu/thread_pool.h"
#include "grammar/grammar_limits.h"
#include "grammar/xgrammar_adapter.h"
#include "tokenizer/tokenizer.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

constexpr const char* kPerson = R"({"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    "address": {"type": "object", "properties": {"street": {"type": "string"},
      "city": {"type": "string", "maxLength": 40}}, "required": ["street", "city"],
      "additionalProperties": false}},
    "required": ["name", "age", "tags", "address"], "additionalProperties": false})";
constexpr const char* kAnswer =
    R"({"name": "Ada Lovelace, née Byron", "age": 36, "tags": ["red", "blue", "green"],)"
    R"( "address": {"street": "12 St James's Square", "city": "London"}})";

struct Case {
  const char* name;
  GrammarSpec spec;
  std::string answer;
};

class Bench {
 public:
  explicit Bench(const Tokenizer& tokenizer) {
    vocabulary_.size = tokenizer.vocab_size();
    vocabulary_.eos = {*tokenizer.IdOf(tokenizer.eos_token())};
    for (int32_t id = 0; id < vocabulary_.size; ++id) {
      const bool special = tokenizer.IsSpecial(TokenId{id});
      vocabulary_.tokens.push_back(special ? "" : tokenizer.TokenBytes(TokenId{id}));
      ids_.emplace(vocabulary_.tokens.back(), TokenId{id});
      longest_ = std::max(longest_, vocabulary_.tokens.back().size());
    }
    compile_ = MakeXgrammarCompile(vocabulary_);
  }

  void Run(const Case& c) {
    CHECK(CheckGrammar(c.spec).ok());
    auto begin = Clock::now();
    const GrammarCompiler::Made grammar = compile_(c.spec);
    const double compile_ms = MicrosSince(begin) / 1000;
    CHECK(grammar.ok(), "{}", grammar.status().message());
    const std::vector<TokenId> tokens = TokensOf(c.answer);
    std::vector<uint32_t> words(static_cast<size_t>(MaskWords(vocabulary_.size)));
    std::vector<double> steps;
    int64_t taken = 0;  // by an answer as it grows
    for (int round = 0; round < 20; ++round) {
      const auto state = *(*grammar)->Start();
      CHECK(state->FillMask(words).ok());
      const int64_t before = ThreadBytes();
      for (const TokenId token : tokens) {
        begin = Clock::now();
        CHECK(*state->Accept(token), "{}: a token of the answer is refused", c.name);
        CHECK(state->FillMask(words).ok());
        steps.push_back(MicrosSince(begin));
      }
      taken = ThreadBytes() - before;
    }
    std::sort(steps.begin(), steps.end());
    double sum = 0;
    for (const double step : steps) sum += step;
    const auto share = [&](double part) {
      return steps[static_cast<size_t>(part * static_cast<double>(steps.size() - 1))];
    };
    fmt::print(
        "{:<14} {:>9.1f} ms {:>9.1f} MiB {:>5} tokens {:>9.1f} us {:>9.1f} us {:>9.1f} us {:>9} "
        "bytes, {} "
        "a character\n",
        c.name, compile_ms, static_cast<double>((*grammar)->bytes()) / (1 << 20), tokens.size(),
        sum / static_cast<double>(steps.size()), share(0.5), share(0.99), taken,
        taken / static_cast<int64_t>(c.answer.size()));
  }

  // Of a step in which each row has a grammar, at every place of its answer.
  void RunRows(const Case& c, int threads) {
    constexpr int64_t kRows = 128;
    const GrammarCompiler::Made grammar = compile_(c.spec);
    CHECK(grammar.ok());
    const std::vector<TokenId> tokens = TokensOf(c.answer);
    const auto words = static_cast<size_t>(MaskWords(vocabulary_.size));
    std::vector<std::vector<uint32_t>> masks(kRows, std::vector<uint32_t>(words));
    std::vector<std::unique_ptr<GrammarState>> states;
    for (int64_t row = 0; row < kRows; ++row) states.push_back(*(*grammar)->Start());
    ThreadPool pool(threads);
    const auto step_us = [&](const auto& of_row) {
      const auto begin = Clock::now();
      pool.ParallelFor(kRows, /*grain=*/1, [&](int64_t first, int64_t end, int) {
        for (int64_t row = first; row < end; ++row) of_row(static_cast<size_t>(row));
      });
      return MicrosSince(begin);
    };
    std::vector<double> steps, writes;
    for (const TokenId token : tokens) {
      steps.push_back(step_us([&](size_t row) {
        CHECK(*states[row]->Accept(token) && states[row]->FillMask(masks[row]).ok());
      }));
      writes.push_back(step_us([&](size_t row) {
        std::fill(masks[row].begin(), masks[row].end(), static_cast<uint32_t>(Raw(token)));
      }));
    }
    std::sort(steps.begin(), steps.end());
    std::sort(writes.begin(), writes.end());
    fmt::print("{:<14} {:>7} {:>16.1f} us {:>16.1f} us {:>16.1f} us\n", c.name, threads,
               steps[steps.size() / 2], steps[steps.size() / 2] / kRows,
               writes[writes.size() / 2] / kRows);
  }

 private:
  std::vector<TokenId> TokensOf(std::string_view text) const {
    std::vector<TokenId> tokens;
    while (!text.empty()) {
      size_t size = std::min(longest_, text.size());
      while (ids_.count(std::string(text.substr(0, size))) == 0) --size;
      tokens.push_back(ids_.at(std::string(text.substr(0, size))));
      text.remove_prefix(size);
    }
    return tokens;
  }

  GrammarVocabulary vocabulary_;
  std::unordered_map<std::string, TokenId> ids_;
  size_t longest_ = 0;
  GrammarCompiler::Compile compile_;
};

int Main(int argc, char** argv) {
  CHECK(argc == 2, "usage: grammar_bench FOLDER");
  auto tokenizer = Tokenizer::Load(argv[1]);
  CHECK(tokenizer.ok(), "{}", tokenizer.status().message());
  Bench bench(**tokenizer);
  fmt::print("{} tokens\n{:<14} {:>12} {:>13} {:>12} {:>12} {:>12} {:>12}\n",
             (*tokenizer)->vocab_size(), "", "compiled in", "", "", "a step", "median", "99%");
  const std::string number = "The answer is 42, and nothing else.";
  const std::vector<Case> cases = {
      Case{"first", {GrammarKind::kRegex, "[a-z]+"}, "abc"},  // with the vocabulary's tables
      Case{"JSON object", {GrammarKind::kJsonObject}, kAnswer},
      Case{"schema", {GrammarKind::kJsonSchema, kPerson, true}, kAnswer},
      Case{"free schema", {GrammarKind::kJsonSchema, kPerson}, kAnswer},
      Case{"regex", {GrammarKind::kRegex, "The answer is [0-9]{1,3}, .*"}, number},
      Case{"EBNF",
           {GrammarKind::kEbnf, "root ::= (word \" \")* word\nword ::= [a-z]+"},
           "grammars are only a few words long"},
  };
  for (const Case& c : cases) bench.Run(c);
  // Long answers: what is kept of their way.
  std::string words, objects = "[";
  while (words.size() < 6000) words += "the quick brown fox jumps over a lazy dog ";
  for (int i = 0; i < 60; ++i) objects += std::string(i == 0 ? "" : ", ") + kAnswer;
  objects += "]";
  const std::string persons = std::string(R"({"type": "array", "items": )") + kPerson + "}";
  constexpr const char* kText =
      R"({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})";
  constexpr const char* kCounted =
      R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9000}},
          "required": ["a"]})";
  const std::string text = "{\"a\": \"" + words + "\"}";
  bench.Run({"long regex", {GrammarKind::kRegex, "[a-z ]+"}, words});
  bench.Run({"long string", {GrammarKind::kJsonSchema, kText, true}, text});
  bench.Run({"long maxLength", {GrammarKind::kJsonSchema, kCounted, true}, text});
  bench.Run({"long schema", {GrammarKind::kJsonSchema, persons, true}, objects});
  bench.Run({"long object", {GrammarKind::kJsonObject}, "{\"a\": " + objects + "}"});
  fmt::print("\n{:<14} {:>7} {:>19} {:>19} {:>19}\n", "128 rows", "threads", "median of a step",
             "a row", "writing a mask");
  for (const int threads : {1, 2, 4, 8}) {
    if (threads > UsableCpus()) break;
    for (size_t i = 1; i < cases.size(); ++i) bench.RunRows(cases[i], threads);
  }
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  return fathom::Main(argc, argv);
}
