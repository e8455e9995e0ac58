#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>

#include "server/chat_generation.h"
#include "server/completion_generation.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr char kModel[] = "models/tiny-r1";

const Tokenizer& TinyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(kModel).value();
  return *tokenizer;
}

TokenId Eos() {
  return *TinyTokenizer().IdOf(TinyTokenizer().eos_token());
}

// Special tokens written in `text` count as such.
std::vector<TokenId> Tokens(const std::string& text) {
  return TinyTokenizer().Encode(SpannedText(text, /*trusted=*/true)).value();
}

class GenerationTest : public testing::Test {
 protected:
  GenerationSetup Setup(GenerationParams params) {
    GenerationSetup setup{.tokenizer = &TinyTokenizer(),
                          .metrics = &metrics_,
                          .clock = &clock_,
                          .id = "id",
                          .model = "m",
                          .params = std::move(params),
                          .eos_tokens = {Eos()}};
    for (const std::string_view marker : OutputMarkers(/*parse_tools=*/true)) {
      setup.kept_special.push_back(*TinyTokenizer().IdOf(marker));
    }
    setup.prompts.push_back({.tokens = Tokens("a prompt"), .max_tokens = 100});
    return setup;
  }

  // Feeds `tokens`, `step` at a time, to every choice; the events, or the body.
  static std::string Run(Generation& generation, const std::vector<TokenId>& tokens,
                         FinishReason finish, size_t step = 1, int logprobs = -1) {
    const std::vector<GenerateRequest> requests = generation.Requests();
    std::string events;
    for (size_t begin = 0; begin < tokens.size() && !generation.done(); begin += step) {
      const size_t end = std::min(begin + step, tokens.size());
      for (size_t choice = 0; choice < requests.size(); ++choice) {
        RequestOutput output;
        for (size_t i = begin; i < end; ++i) {
          output.tokens.push_back({tokens[i], {}});
          if (logprobs >= 0) output.tokens.back().logprobs = TokenLogprobs{-1.5f, {}};
        }
        if (begin == 0) {
          for (size_t i = 1; i < requests[choice].prompt.size(); ++i) {
            if (requests[choice].prompt_logprobs >= 0) {
              output.prompt_logprobs.push_back({-0.25f, {}});
            }
          }
        }
        if (end == tokens.size()) output.finish = finish;
        generation.OnOutput(choice, std::move(output), &events);
      }
    }
    EXPECT_TRUE(generation.done());
    if (generation.error()) return ToJson(*generation.error());
    return generation.streams() ? events + generation.LastEvents() : generation.Body().value();
  }

  static std::vector<json::value> Events(const std::string& text) {
    std::vector<json::value> events;
    size_t at = 0;
    while (at < text.size()) {
      const size_t end = text.find("\n\n", at);
      EXPECT_EQ(text.substr(at, 6), "data: ");
      const std::string data = text.substr(at + 6, end - at - 6);
      if (data != "[DONE]") events.push_back(json::parse(data));
      at = end + 2;
    }
    EXPECT_TRUE(text.ends_with(kDoneEvent));
    return events;
  }

  // What the deltas of a chat stream add up to.
  static json::object Joined(const std::vector<json::value>& events) {
    ChatDelta whole;
    json::value finish;
    for (const json::value& event : events) {
      if (event.at("choices").as_array().empty()) continue;
      const json::object& choice = event.at("choices").at(0).as_object();
      const json::object& delta = choice.at("delta").as_object();
      const auto text = [&](const char* key) {
        const json::value* value = delta.if_contains(key);
        return value ? std::string(value->as_string()) : std::string();
      };
      ChatDelta part{.reasoning = text("reasoning"), .content = text("content"), .tool_calls = {}};
      EXPECT_EQ(part.reasoning, text("reasoning_content"));
      if (const json::value* calls = delta.if_contains("tool_calls")) {
        for (const json::value& call : calls->as_array()) {
          const json::object& function = call.at("function").as_object();
          const json::value* name = function.if_contains("name");
          part.tool_calls.push_back(
              {.index = static_cast<int>(call.at("index").as_int64()),
               .id = name ? "id" : "",
               .name = name ? std::string(name->as_string()) : "",
               .arguments = std::string(function.at("arguments").as_string())});
        }
      }
      Append(std::move(part), &whole);
      if (!choice.at("finish_reason").is_null()) finish = choice.at("finish_reason");
    }
    json::object joined = ToJson(whole);
    joined["finish_reason"] = finish;
    return joined;
  }

  Metrics metrics_{"m"};
  VirtualClock clock_;
};

TEST_F(GenerationTest, CachedTokensAreThoseOfEachPromptsFirstChoice) {
  GenerationSetup setup = Setup({.n = 2, .cache_salt = "mine"});
  setup.prompts.push_back({.tokens = Tokens("another prompt"), .max_tokens = 100});
  CompletionGeneration generation(std::move(setup));
  const std::vector<GenerateRequest> requests = generation.Requests();
  ASSERT_EQ(requests.size(), 4u);
  std::string events;
  for (size_t choice = 0; choice < requests.size(); ++choice) {
    EXPECT_EQ(requests[choice].cache_salt, "mine");
    RequestOutput output{.cached_tokens = choice == 2 ? 128 : 64 * (static_cast<int>(choice) % 2)};
    output.tokens.push_back({Eos(), {}});
    output.finish = FinishReason::kStop;
    generation.OnOutput(choice, std::move(output), &events);
  }
  ASSERT_TRUE(generation.done());
  const json::value body = json::parse(generation.Body().value());
  EXPECT_EQ(body.at("usage").at("prompt_tokens_details").at("cached_tokens"), json::value(128));
}

TEST_F(GenerationTest, ChatSplitsReasoningFromContent) {
  std::vector<TokenId> tokens = Tokens("2 + 2 is 4.</think>The answer is 4.");
  tokens.push_back(Eos());
  ChatGeneration generation(Setup({}), {.parser = {.starts_in_reasoning = true}});
  const json::value body = json::parse(Run(generation, tokens, FinishReason::kStop));
  EXPECT_EQ(body.at("object"), json::value("chat.completion"));
  const json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("content"), json::value("The answer is 4."));
  EXPECT_EQ(choice.at("message").at("reasoning"), json::value("2 + 2 is 4."));
  EXPECT_EQ(choice.at("message").at("reasoning_content"), json::value("2 + 2 is 4."));
  EXPECT_EQ(choice.at("finish_reason"), json::value("stop"));
  EXPECT_EQ(choice.at("stop_reason"), json::value(nullptr));
  EXPECT_EQ(body.at("usage").at("completion_tokens"), json::value(tokens.size()));
}

TEST_F(GenerationTest, StreamsAddUpToTheWholeHoweverTokensArrive) {
  std::vector<TokenId> tokens = Tokens(
      "I should call it. \xF0\x9F\x98\x80</think>Wait. <｜tool▁calls▁begin｜>"
      "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{\"city\": \"Oslo\"}<｜tool▁call▁end｜>"
      "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{\"city\": \"Rome\"}<｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜>");
  tokens.push_back(Eos());
  const ChatOutputOptions options{.parser = {.starts_in_reasoning = true, .parse_tools = true}};
  ChatGeneration whole(Setup({}), options);
  const json::value body = json::parse(Run(whole, tokens, FinishReason::kStop));
  const json::object& message = body.at("choices").at(0).at("message").as_object();
  ASSERT_EQ(message.at("tool_calls").as_array().size(), 2u);
  EXPECT_EQ(message.at("tool_calls").at(1).at("function").at("arguments"),
            json::value("{\"city\": \"Rome\"}"));
  for (size_t step = 1; step <= tokens.size(); ++step) {
    ChatGeneration generation(Setup({.stream = true}), options);
    const json::object joined = Joined(Events(Run(generation, tokens, FinishReason::kStop, step)));
    EXPECT_EQ(joined.at("reasoning"), message.at("reasoning"));
    EXPECT_EQ(joined.at("content"), message.at("content"));
    EXPECT_EQ(joined.at("tool_calls").as_array().size(), 2u);
    EXPECT_EQ(joined.at("tool_calls").at(0).at("function"),
              message.at("tool_calls").at(0).at("function"));
    EXPECT_EQ(joined.at("finish_reason"), json::value("tool_calls"));
  }
}

TEST_F(GenerationTest, OneCallAtATimeWhenAsked) {
  const std::string call = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>";
  std::vector<TokenId> tokens =
      Tokens("<｜tool▁calls▁begin｜>" + call + call + "<｜tool▁calls▁end｜>");
  ChatGeneration generation(Setup({}),
                            {.parser = {.parse_tools = true}, .parallel_tool_calls = false});
  const json::value body = json::parse(Run(generation, tokens, FinishReason::kLength));
  EXPECT_EQ(body.at("choices").at(0).at("message").at("tool_calls").as_array().size(), 1u);
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), json::value("length"));
}

TEST_F(GenerationTest, SpecialTokensAreLeftOutUnlessWanted) {
  std::vector<TokenId> tokens = Tokens("a<｜User｜>b");
  CompletionGeneration skipping(Setup({}));
  EXPECT_EQ(
      json::parse(Run(skipping, tokens, FinishReason::kLength)).at("choices").at(0).at("text"),
      json::value("ab"));
  CompletionGeneration showing(Setup({.skip_special_tokens = false}));
  EXPECT_EQ(json::parse(Run(showing, tokens, FinishReason::kLength)).at("choices").at(0).at("text"),
            json::value("a<｜User｜>b"));
}

TEST_F(GenerationTest, StopStringEndsTheTextAndTheEngineRequest) {
  const std::vector<TokenId> tokens = Tokens("one two three four five");
  for (const bool include : {false, true}) {
    GenerationParams params;
    params.stop = {"three"};
    params.include_stop_str_in_output = include;
    CompletionGeneration generation(Setup(params));
    RequestOutput output;
    for (const TokenId id : tokens) output.tokens.push_back({id, {}});
    generation.OnOutput(0, std::move(output), nullptr);
    ASSERT_TRUE(generation.done());
    EXPECT_EQ(generation.TakeCancels(), std::vector<size_t>{0});
    const json::value choice = json::parse(generation.Body().value()).at("choices").at(0);
    EXPECT_EQ(choice.at("text"), json::value(include ? "one two three" : "one two "));
    EXPECT_EQ(choice.at("finish_reason"), json::value("stop"));
    EXPECT_EQ(choice.at("stop_reason"), json::value("three"));
    EXPECT_LT(generation.usage().completion_tokens, static_cast<int64_t>(tokens.size()));
  }
}

TEST_F(GenerationTest, StopStringsWaitForMinTokens) {
  std::vector<TokenId> tokens = Tokens("stop and go and stop and go");
  GenerationParams params;
  params.stop = {"stop"};
  params.min_tokens = 4;
  CompletionGeneration generation(Setup(params));
  const json::value body = json::parse(Run(generation, tokens, FinishReason::kLength));
  EXPECT_EQ(body.at("choices").at(0).at("text"), json::value("stop and go and "));
}

TEST_F(GenerationTest, StopTokenIsNamedAndNotShown) {
  std::vector<TokenId> tokens = Tokens("one two");
  GenerationParams params;
  params.stop_token_ids = {tokens.back()};
  CompletionGeneration generation(Setup(params));
  EXPECT_EQ(generation.Requests()[0].stop_tokens, (std::vector<TokenId>{tokens.back(), Eos()}));
  const json::value choice =
      json::parse(Run(generation, tokens, FinishReason::kStop)).at("choices").at(0);
  EXPECT_EQ(choice.at("stop_reason"), json::value(Raw(tokens.back())));
  EXPECT_TRUE(std::string("one two").starts_with(choice.at("text").as_string()));
  params.ignore_eos = true;
  EXPECT_EQ(CompletionGeneration(Setup(params)).Requests()[0].stop_tokens.size(), 1u);
}

TEST_F(GenerationTest, ChatLogprobsHaveTheBytesOfEachToken) {
  const std::vector<TokenId> tokens = Tokens("h\xC3\xA9 \xF0\x9F\x98\x80");
  GenerationParams params;
  params.sampling.logprobs = 0;
  ChatGeneration generation(Setup(params), {});
  const json::value body = json::parse(Run(generation, tokens, FinishReason::kLength, 1, 0));
  std::string bytes;
  for (const json::value& entry :
       body.at("choices").at(0).at("logprobs").at("content").as_array()) {
    for (const json::value& byte : entry.at("bytes").as_array()) {
      bytes += static_cast<char>(byte.as_int64());
    }
    EXPECT_EQ(entry.at("logprob").as_double(), -1.5);
  }
  EXPECT_EQ(bytes, "h\xC3\xA9 \xF0\x9F\x98\x80");
}

TEST_F(GenerationTest, OffsetsAreThoseOfTheText) {
  const std::string text = "a \xC3\xA9 \xF0\x9F\x98\x80 z";  // two that are several tokens each
  GenerationParams params;
  params.sampling.logprobs = 0;
  CompletionGeneration generation(Setup(params));
  const json::value body =
      json::parse(Run(generation, Tokens(text), FinishReason::kLength, 1, 0)).at("choices").at(0);
  ASSERT_EQ(body.at("text"), json::value(text));
  const json::object& logprobs = body.at("logprobs").as_object();
  EXPECT_EQ(logprobs.at("tokens").as_array().back(), json::value("z"));
  EXPECT_EQ(logprobs.at("text_offset").as_array().back(), json::value(6));
}

// Those of the first event are of no token that it shows.
TEST_F(GenerationTest, IdsOfTokensComeWithTheirText) {
  GenerationParams params;
  params.stream = params.return_token_ids = true;
  ChatGeneration generation(Setup(params), {});
  const std::vector<json::value> events =
      Events(Run(generation, Tokens("Hello"), FinishReason::kLength));
  EXPECT_TRUE(events[0].at("choices").at(0).at("token_ids").as_array().empty());
  EXPECT_FALSE(events[1].at("choices").at(0).at("token_ids").as_array().empty());
}

TEST_F(GenerationTest, EchoPutsThePromptAndItsLogprobsFirst) {
  GenerationParams params;
  params.sampling.logprobs = 0;
  GenerationSetup setup = Setup(params);
  setup.prompts[0] = {
      .tokens = Tokens("a prompt"), .max_tokens = 3, .echo = true, .text = "a prompt"};
  CompletionGeneration generation(std::move(setup));
  const json::value choice =
      json::parse(Run(generation, Tokens(" more"), FinishReason::kLength, 1, 0))
          .at("choices")
          .at(0);
  EXPECT_EQ(choice.at("text"), json::value("a prompt more"));
  const json::object& logprobs = choice.at("logprobs").as_object();
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  EXPECT_EQ(logprobs.at("token_logprobs").at(1), json::value(-0.25));
  std::string text;
  for (size_t i = 0; i < logprobs.at("tokens").as_array().size(); ++i) {
    EXPECT_EQ(logprobs.at("text_offset").at(i).as_int64(), static_cast<int64_t>(text.size()));
    text += std::string_view(logprobs.at("tokens").at(i).as_string());
  }
  EXPECT_EQ(text, "a prompt more");
}

TEST_F(GenerationTest, AScoredPromptShowsNoGeneratedToken) {
  GenerationParams params;
  params.sampling.logprobs = 0;
  GenerationSetup setup = Setup(params);
  setup.prompts[0] = {
      .tokens = Tokens("a prompt"), .max_tokens = 0, .echo = true, .text = "a prompt"};
  CompletionGeneration generation(std::move(setup));
  EXPECT_EQ(generation.Requests()[0].max_tokens, 1);
  const json::value body =
      json::parse(Run(generation, Tokens(" more"), FinishReason::kLength, 1, 0));
  EXPECT_EQ(body.at("choices").at(0).at("text"), json::value("a prompt"));
  EXPECT_EQ(body.at("usage").at("completion_tokens"), json::value(0));
}

TEST_F(GenerationTest, ChoicesHaveTheirOwnSeeds) {
  GenerationParams params;
  params.n = 3;
  params.sampling.seed = 5;
  GenerationSetup setup = Setup(params);
  setup.prompts.push_back(setup.prompts[0]);
  CompletionGeneration generation(std::move(setup));
  const std::vector<GenerateRequest> requests = generation.Requests();
  ASSERT_EQ(requests.size(), 6u);
  EXPECT_EQ(requests[0].sampling.seed, 5u);
  EXPECT_NE(requests[1].sampling.seed, 5u);
  EXPECT_NE(requests[1].sampling.seed, requests[2].sampling.seed);
  EXPECT_EQ(requests[3].sampling.seed, 5u);
  const json::value body = json::parse(Run(generation, Tokens("hi"), FinishReason::kLength));
  EXPECT_EQ(body.at("choices").as_array().size(), 6u);
  EXPECT_EQ(body.at("choices").at(5).at("index"), json::value(5));
}

TEST_F(GenerationTest, UsageComesLastOrAlways) {
  const std::vector<TokenId> tokens = Tokens("one two three");
  GenerationParams params{.stream = true, .include_usage = true};
  ChatGeneration last(Setup(params), {});
  std::vector<json::value> events = Events(Run(last, tokens, FinishReason::kLength));
  EXPECT_TRUE(events.front().at("usage").is_null());
  EXPECT_TRUE(events.back().at("choices").as_array().empty());
  EXPECT_EQ(events.back().at("usage").at("completion_tokens"), json::value(tokens.size()));
  params.continuous_usage_stats = true;
  ChatGeneration always(Setup(params), {});
  events = Events(Run(always, tokens, FinishReason::kLength));
  EXPECT_EQ(events.front().at("usage").at("completion_tokens"), json::value(1));
}

TEST_F(GenerationTest, AnErrorEndsEveryChoice) {
  GenerationParams params;
  params.n = 2;
  ChatGeneration generation(Setup(params), {});
  RequestOutput output{.finish = FinishReason::kError, .error = Internal("NaN")};
  generation.OnOutput(1, std::move(output), nullptr);
  ASSERT_TRUE(generation.done() && generation.error());
  EXPECT_EQ(generation.error()->status, 500);
  const std::string metrics = metrics_.Render({}, 0);
  EXPECT_NE(metrics.find(R"(request_params_n_sum{engine="0",model_name="m"} 2)"), metrics.npos);
  EXPECT_NE(metrics.find(R"(engine="0",finished_reason="error",model_name="m"} 2)"), metrics.npos);
}

TEST_F(GenerationTest, AChoiceThatHasStoppedTakesNoMore) {
  GenerationParams params;
  params.stop = {"stop"};
  ChatGeneration generation(Setup(params), {});
  const auto output = [&](const char* text) {
    RequestOutput news;
    for (const TokenId id : Tokens(text)) news.tokens.push_back({id, {}});
    generation.OnOutput(0, std::move(news), nullptr);
  };
  output("Now stop");
  ASSERT_TRUE(generation.done());
  const int64_t tokens = generation.usage().completion_tokens;
  output(" and more");
  EXPECT_TRUE(generation.done());
  EXPECT_EQ(generation.usage().completion_tokens, tokens);
  EXPECT_EQ(json::parse(generation.Body().value()).at("choices").at(0).at("message").at("content"),
            "Now ");
}

}  // namespace
}  // namespace fathom
