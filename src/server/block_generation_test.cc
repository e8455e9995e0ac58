#include "server/block_generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/messages_generation.h"
#include "server/responses_generation.h"

namespace fathom {
namespace {

namespace json = boost::json;

const Tokenizer& TinyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("models/tiny-r1").value();
  return *tokenizer;
}

std::vector<TokenId> Tokens(const std::string& text) {
  return TinyTokenizer().Encode(SpannedText(text, /*trusted=*/true)).value();
}

std::string Call(const std::string& arguments) {
  return "<｜tool▁call▁begin｜>f<｜tool▁sep｜>" + arguments + "<｜tool▁call▁end｜>";
}

class BlockGenerationTest : public testing::Test {
 protected:
  GenerationSetup Setup(bool stream) {
    GenerationSetup setup{.tokenizer = &TinyTokenizer(),
                          .metrics = &metrics_,
                          .clock = &clock_,
                          .id = "resp_1",
                          .model = "m",
                          .params = {.n = 1, .stream = stream}};
    for (const std::string_view marker : OutputMarkers(/*parse_tools=*/true)) {
      setup.kept_special.push_back(*TinyTokenizer().IdOf(marker));
    }
    setup.prompts.push_back({.tokens = Tokens("a prompt"), .max_tokens = 1'000'000});
    return setup;
  }
  static ChatOutputOptions Options(bool thinks) {
    return {.parser = {.starts_in_reasoning = thinks,
                       .parse_reasoning = true,
                       .parse_tools = true,
                       .tool_call_form = ToolCallForm::kNameFirst,
                       .tool_call_id_seed = 7}};
  }
  std::unique_ptr<Generation> Make(bool messages, bool stream, bool thinks = true) {
    if (messages) return std::make_unique<MessagesGeneration>(Setup(stream), Options(thinks));
    return std::make_unique<ResponsesGeneration>(Setup(stream), Options(thinks),
                                                 ResponseContext{.sampling = "",
                                                                 .shown = R"("x":1)",
                                                                 .messages = "[{}]",
                                                                 .store = &store_,
                                                                 .owner = ""});
  }
  // Takes `tokens`, so many in each step; the events.
  static std::string Take(Generation& generation, const std::vector<TokenId>& tokens, size_t step) {
    std::string events;
    for (size_t begin = 0; begin < tokens.size(); begin += step) {
      RequestOutput output;
      const size_t end = std::min(begin + step, tokens.size());
      for (size_t i = begin; i < end; ++i) output.tokens.push_back({tokens[i], {}});
      generation.OnOutput(0, std::move(output), &events);
    }
    return events;
  }
  static void Finish(Generation& generation, std::string* events = nullptr) {
    std::string none;
    generation.OnOutput(0, {.finish = FinishReason::kLength}, events ? events : &none);
    ASSERT_TRUE(generation.done());
  }
  static json::value Parsed(const std::string& text) { return json::parse(text); }

  Metrics metrics_{"m"};
  VirtualClock clock_;
  ResponseStore store_{8, size_t{1} << 20};
};

// Speculation brings several tokens at once: what stands behind a call was shown before it, or
// became its arguments.
TEST_F(BlockGenerationTest, BlocksDoNotDependOnSteps) {
  for (const std::string& text :
       {"a thought</think>  Hi <b> <｜tool▁calls▁begin｜>" + Call("{\"a\": 1}") +
            Call("{\"b\": [2]}") + "<｜tool▁calls▁end｜> tail",
        std::string("<think>x</think>Hello"), std::string("<think></think>Hello")}) {
    const std::vector<TokenId> tokens = Tokens(text);
    const bool thinks = !text.starts_with("<think>");
    for (const bool messages : {false, true}) {
      std::string whole, deltas;
      for (size_t step = 1; step <= tokens.size(); ++step) {
        const std::unique_ptr<Generation> answer = Make(messages, /*stream=*/false, thinks);
        Take(*answer, tokens, step);
        Finish(*answer);
        json::value body = Parsed(answer->Body().value());
        body.as_object().erase("created_at");
        if (step == 1) whole = json::serialize(body);
        EXPECT_EQ(json::serialize(body), whole) << step << " tokens a step";

        const std::unique_ptr<Generation> stream = Make(messages, /*stream=*/true, thinks);
        std::string events = Take(*stream, tokens, step);
        Finish(*stream, &events);
        events += stream->LastEvents();
        // Each block's text, behind its number.
        std::string shown;
        std::string last;
        for (size_t at = 0; (at = events.find("data: ", at)) != std::string::npos; at += 6) {
          const json::value event = Parsed(events.substr(at + 6, events.find('\n', at) - at - 6));
          const json::value* delta = event.as_object().if_contains("delta");
          const json::value* index =
              event.as_object().if_contains(messages ? "index" : "output_index");
          if (delta == nullptr || index == nullptr) continue;
          const std::string number = json::serialize(*index);
          if (number != std::exchange(last, number)) shown += number + ":";
          if (delta->is_string()) shown += std::string_view(delta->as_string());
          for (const char* key : {"text", "thinking", "partial_json"}) {
            const json::value* part =
                delta->is_object() ? delta->as_object().if_contains(key) : nullptr;
            if (part != nullptr) shown += std::string_view(part->as_string());
          }
        }
        if (step == 1) deltas = shown;
        EXPECT_EQ(shown, deltas) << step << " tokens a step";
      }
    }
  }
}

// A marker may be spelled, and one that is a token may be text.
TEST_F(BlockGenerationTest, ThinkingIsSomeOfTheTokens) {
  std::vector<TokenId> tokens;
  for (const char* text :
       {" ", "<", "t", "h", "i", "n", "k", ">", "</think>", "y", "<think>", "z"}) {
    const std::vector<TokenId> one = Tokens(text);
    tokens.insert(tokens.end(), one.begin(), one.end());
  }
  for (size_t step = 1; step <= tokens.size(); ++step) {
    const std::unique_ptr<Generation> blocks = Make(/*messages=*/true, /*stream=*/false, false);
    GenerationSetup setup = Setup(/*stream=*/false);
    setup.params.sampling.logprobs = 0;
    ChatOutputOptions options = Options(/*thinks=*/false);
    options.include_reasoning = false;
    ChatGeneration chat(std::move(setup), options);
    for (Generation* generation : {blocks.get(), static_cast<Generation*>(&chat)}) {
      Take(*generation, tokens, step);
      Finish(*generation);
      EXPECT_GE(generation->usage().reasoning_tokens.value(), 0) << step;
      EXPECT_LE(generation->usage().reasoning_tokens.value(), static_cast<int64_t>(tokens.size()));
    }
    EXPECT_EQ(Parsed(chat.Body().value()).at("choices").at(0).at("message").at("content"),
              json::value(" y<think>z"));
  }
}

// Each part would be an event.
TEST_F(BlockGenerationTest, WhatIsOfOneKindIsOneEvent) {
  for (const bool messages : {false, true}) {
    const std::unique_ptr<Generation> stream = Make(messages, /*stream=*/true, false);
    const std::string events = Take(*stream, std::vector<TokenId>(1'000, Tokens(">")[0]), 1'000);
    EXPECT_NE(events.find(std::string(1'000, '>')), std::string::npos);
    EXPECT_LT(events.size(), 4'000u);
  }
}

// Whitespace of the thinking became the text's.
TEST_F(BlockGenerationTest, BlankThinkingIsNoText) {
  const std::unique_ptr<Generation> generation = Make(/*messages=*/true, /*stream=*/false);
  Take(*generation, Tokens("\n\n</think>\nHi"), 1);
  Finish(*generation);
  const json::value body = Parsed(generation->Body().value());
  EXPECT_EQ(body.at("content").at(0).at("text"), json::value("\nHi"));
}

// They would be kept, and counted for nobody.
TEST_F(BlockGenerationTest, BlanksAndCallsWithoutTextCount) {
  constexpr size_t kBlanks = 100'000, kCalls = 100;
  const std::unique_ptr<Generation> blank = Make(/*messages=*/true, /*stream=*/true, false);
  Take(*blank, std::vector<TokenId>(kBlanks, Tokens("\n")[0]), 1'000);
  EXPECT_GE(blank->kept_text(), kBlanks);
  const std::unique_ptr<Generation> calls = Make(/*messages=*/true, /*stream=*/true, false);
  std::string text = "<｜tool▁calls▁begin｜>";
  for (size_t i = 0; i < kCalls; ++i) text += Call("");
  const std::string events = Take(*calls, Tokens(text), 50);
  EXPECT_NE(events.find("tool_use"), std::string::npos);
  EXPECT_GE(calls->kept_text(), 200 * kCalls);
}

// A conversation takes objects alone, and was at its end.
TEST_F(BlockGenerationTest, ArgumentsThatAreNoObjectAreStoredAsOne) {
  for (const auto& [arguments, stored] :
       {std::pair<std::string, std::string>{"[1]", R"({"INVALID_JSON":"[1]"})"},
        {"", "{}"},
        {R"({"a": 1})", R"({"a": 1})"}}) {
    const std::unique_ptr<Generation> generation = Make(/*messages=*/false, false, false);
    Take(*generation, Tokens("<｜tool▁calls▁begin｜>" + Call(arguments)), 1);
    Finish(*generation);
    ASSERT_TRUE(generation->Body().ok());
    const json::value messages = Parsed(store_.Get("", "resp_1")->messages);
    const json::value& call = messages.as_array().back().at("tool_calls").at(0);
    EXPECT_EQ(call.at("function").at("arguments"), json::value(stored));
  }
}

// They were no JSON for /v1/messages where they were deeper than a parser goes by itself.
TEST_F(BlockGenerationTest, DeepArgumentsAreAnObject) {
  const std::string deep = R"({"a":)" + std::string(50, '[') + std::string(50, ']') + "}";
  const std::unique_ptr<Generation> generation = Make(/*messages=*/true, false, false);
  Take(*generation, Tokens("<｜tool▁calls▁begin｜>" + Call(deep)), 1);
  Finish(*generation);
  EXPECT_NE(generation->Body().value().find(R"("input":)" + deep), std::string::npos);
}

}  // namespace
}  // namespace fathom
