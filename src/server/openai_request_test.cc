#include "server/openai_request.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "server/json_body.h"
#include "server/openapi.h"

namespace fathom {
namespace {

constexpr RequestLimits kLimits{
    .defaults = {}, .vocab_size = 100, .max_model_len = 64, .max_choices = 8, .max_eos_tokens = 1};

template <class Body, class Request>
using Parser = std::optional<ApiError> (*)(Body, const RequestLimits&, Request*);

template <class Body, class Request>
std::optional<ApiError> Parse(Parser<Body, Request> parser, const std::string& text,
                              Request* request, const RequestLimits& limits = kLimits) {
  JsonBody body;
  if (auto error = JsonBody::Parse(text, {}, &body)) return error;
  return parser(body.object(), limits, request);
}

ChatRequest GoodChat(const std::string& fields) {
  ChatRequest request;
  const std::string body = std::string(R"({"messages": [{"role": "user", "content": "hi"}])") +
                           (fields.empty() ? "" : ", ") + fields + "}";
  const auto error = Parse(&ParseChat, body, &request);
  EXPECT_FALSE(error.has_value()) << fields << ": " << (error ? error->message : "");
  return request;
}

// The param that the error names.
std::string BadChat(const std::string& fields) {
  ChatRequest request;
  const auto error = Parse(
      &ParseChat, R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}", &request);
  EXPECT_TRUE(error.has_value()) << fields;
  if (!error) return "";
  EXPECT_EQ(error->status, 400);
  EXPECT_FALSE(error->message.empty());
  return error->param;
}

std::string BadMessages(const std::string& messages) {
  ChatRequest request;
  const auto error = Parse(&ParseChat, R"({"messages": )" + messages + "}", &request);
  return error ? error->message : "";
}

TEST(ParseChat, Defaults) {
  const ChatRequest chat = GoodChat("");
  EXPECT_EQ(chat.params.sampling.temperature, 1.0f);
  EXPECT_EQ(chat.params.sampling.top_k, 0);
  EXPECT_EQ(chat.params.n, 1);
  EXPECT_FALSE(chat.params.max_tokens.has_value());
  EXPECT_FALSE(chat.params.seeded);
  EXPECT_TRUE(chat.params.skip_special_tokens);
  EXPECT_TRUE(chat.prompt.add_generation_prompt);
  EXPECT_EQ(chat.params.sampling.logprobs, -1);
}

TEST(ParseChat, ModelDefaultsGiveWayToTheRequest) {
  RequestLimits limits = kLimits;
  limits.defaults = {.temperature = 0.6f, .top_p = 0.95f, .top_k = -1};
  ChatRequest request;
  EXPECT_FALSE(Parse(&ParseChat,
                     R"({"messages": [{"role": "user", "content": "hi"}], "top_p": 0.5})", &request,
                     limits));
  EXPECT_EQ(request.params.sampling.temperature, 0.6f);
  EXPECT_EQ(request.params.sampling.top_p, 0.5f);
  EXPECT_EQ(request.params.sampling.top_k, 0);
}

TEST(ParseChat, EverySamplingField) {
  const ChatRequest chat = GoodChat(
      R"("temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "presence_penalty": -1,
         "frequency_penalty": 2.0, "repetition_penalty": 1.5, "logit_bias": {"3": -100, "99": 1.5},
         "seed": -3, "max_tokens": 9, "max_completion_tokens": 8, "min_tokens": 2,
         "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": true, "n": 3, "logprobs": true,
         "top_logprobs": 4, "include_stop_str_in_output": true, "skip_special_tokens": false,
         "stream": true, "stream_options": {"include_usage": true}, "user": "me", "metadata": {},
         "cache_salt": "mine")");
  const GenerationParams& params = chat.params;
  const SamplingParams& s = params.sampling;
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.top_p, 0.25f);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.presence_penalty, -1.0f);
  EXPECT_EQ(s.frequency_penalty, 2.0f);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.logit_bias,
            (std::vector<std::pair<TokenId, float>>{{TokenId{3}, -100.0f}, {TokenId{99}, 1.5f}}));
  EXPECT_EQ(s.seed, static_cast<uint64_t>(-3));
  EXPECT_TRUE(params.seeded);
  EXPECT_EQ(params.max_tokens, 8);
  EXPECT_EQ(params.min_tokens, 2);
  EXPECT_EQ(params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(params.stop_token_ids, std::vector<TokenId>{TokenId{5}});
  EXPECT_TRUE(params.ignore_eos && params.stream && params.include_usage);
  EXPECT_TRUE(params.include_stop_str_in_output && !params.skip_special_tokens);
  EXPECT_EQ(params.n, 3);
  EXPECT_EQ(params.cache_salt, "mine");
  EXPECT_EQ(s.logprobs, 4);
}

TEST(ParseChat, NullsCountAsAbsentAndWholeFloatsAsIntegers) {
  const ChatRequest chat = GoodChat(
      R"("temperature": null, "stop": null, "tools": null, "max_tokens": 5.0, "top_k": -1)");
  EXPECT_EQ(chat.params.max_tokens, 5);
  EXPECT_EQ(chat.params.sampling.top_k, 0);
  // More than there are: all.
  EXPECT_EQ(GoodChat(R"("top_k": 2000000000)").params.sampling.top_k, kLimits.vocab_size);
}

TEST(ParseChat, ErrorsNameTheParameter) {
  EXPECT_EQ(BadChat(R"("temperature": 1000.5)"), "temperature");
  EXPECT_EQ(BadChat(R"("temperature": "hot")"), "temperature");
  EXPECT_EQ(BadChat(R"("top_p": 0)"), "top_p");
  EXPECT_EQ(BadChat(R"("top_k": -2)"), "top_k");
  EXPECT_EQ(BadChat(R"("min_p": 1.5)"), "min_p");
  EXPECT_EQ(BadChat(R"("presence_penalty": 3)"), "presence_penalty");
  EXPECT_EQ(BadChat(R"("repetition_penalty": 0)"), "repetition_penalty");
  EXPECT_EQ(BadChat(R"("logit_bias": {"100": 1})"), "logit_bias");
  EXPECT_EQ(BadChat(R"("logit_bias": {"x": 1})"), "logit_bias");
  EXPECT_EQ(BadChat(R"("logit_bias": {"1": 101})"), "logit_bias");
  EXPECT_EQ(BadChat(R"("max_tokens": 0)"), "max_tokens");
  EXPECT_EQ(BadChat(R"("max_tokens": 1.5)"), "max_tokens");
  EXPECT_EQ(BadChat(R"("n": 0)"), "n");
  EXPECT_EQ(BadChat(R"("n": 9)"), "n");
  EXPECT_EQ(BadChat(R"("n": 129)"), "n");
  EXPECT_EQ(BadChat(R"("cache_salt": 5)"), "cache_salt");
  EXPECT_EQ(BadChat(R"("cache_salt": ")" + std::string(1025, 's') + "\""), "cache_salt");
  EXPECT_EQ(BadChat(R"("stop": [""])"), "stop");
  EXPECT_EQ(BadChat(R"("stop": [1])"), "stop");
  EXPECT_EQ(BadChat(R"("stop_token_ids": [100])"), "stop_token_ids");
  EXPECT_EQ(BadChat(R"("seed": "x")"), "seed");
  EXPECT_EQ(BadChat(R"("top_logprobs": 3)"), "top_logprobs");
  EXPECT_EQ(BadChat(R"("logprobs": true, "top_logprobs": 21)"), "top_logprobs");
  EXPECT_EQ(BadChat(R"("logprob_token_ids": [5])"), "logprob_token_ids");
  EXPECT_EQ(BadChat(R"("logprobs": false, "logprob_token_ids": [5])"), "logprob_token_ids");
  for (const std::string bad : {"5", "[]", "[100]", "[-1]", "[1.5]", "[\"a\"]"}) {
    EXPECT_EQ(BadChat(R"("logprobs": true, "logprob_token_ids": )" + bad), "logprob_token_ids");
  }
  EXPECT_EQ(BadChat(R"("min_tokens": 3, "max_tokens": 2)"), "min_tokens");
  EXPECT_EQ(BadChat(R"("stream_options": {"include_usage": true})"), "stream_options");
  EXPECT_EQ(BadChat(R"("stream": true, "stream_options": {"include_usage": 1})"),
            "stream_options.include_usage");
}

TEST(OpenApi, BoundsAreThoseOfTheServer) {
  const boost::json::value description = boost::json::parse(kOpenApi);
  for (const std::string name : {"ChatRequest", "CompletionRequest"}) {
    const std::string schema = "/components/schemas/" + name + "/properties/n/maximum";
    EXPECT_EQ(description.at_pointer(schema).to_number<int>(), kMaxN);
  }
}

TEST(ParseChat, WhatIsNotSupportedSaysSo) {
  EXPECT_EQ(BadChat(R"("tools": [{"function": {"name": "f"}}], "tool_choice": "always")"),
            "tool_choice");
  EXPECT_EQ(BadChat(R"("tool_choice": {"type": "function", "function": {"name": "f"}})"),
            "tool_choice");
  EXPECT_EQ(BadChat(R"("tools": [{"function": {"name": "g"}}],
                       "tool_choice": {"type": "function", "function": {"name": "f"}})"),
            "tool_choice");
  GoodChat(R"("tools": [{"function": {"name": "f"}}], "tool_choice": "required")");
  EXPECT_EQ(BadChat(R"("best_of": 2)"), "best_of");
  EXPECT_EQ(BadChat(R"("suffix": "end")"), "suffix");
  EXPECT_EQ(BadChat(R"("functions": [])"), "functions");
  GoodChat(R"("response_format": {"type": "text"}, "best_of": 1, "use_beam_search": false)");
}

TEST(ParseChat, MessagesTakeTheFormThatTemplatesExpect) {
  ChatRequest request;
  const auto error = Parse(&ParseChat, R"({"messages": [
      {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "user", "content": "q", "name": "Ann", "secret": 1},
      {"role": "assistant", "reasoning": "because", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "42"}],
      "tools": [{"type": "function", "function": {"name": "f"}}],
      "chat_template_kwargs": {"thinking": false}})",
                           &request);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(boost::json::value(request.prompt.messages), boost::json::parse(R"([
      {"role": "system", "content": "a\nb"},
      {"role": "user", "content": "q", "name": "Ann"},
      {"role": "assistant", "content": null, "reasoning": "because", "reasoning_content": "because",
       "tool_calls": [{"id": "c1", "type": "function",
                       "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
      {"role": "tool", "content": "42", "tool_call_id": "c1"}])"));
  EXPECT_EQ(boost::json::value(request.prompt.tools), boost::json::parse(R"([
      {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}])"));
  EXPECT_EQ(request.prompt.template_kwargs.at("thinking"), boost::json::value(false));
}

TEST(ParseChat, AnEmptyStopIsNone) {
  EXPECT_TRUE(GoodChat(R"("stop": "")").params.stop.empty());
  EXPECT_TRUE(GoodChat(R"("stop": [])").params.stop.empty());
}

TEST(ParseChat, ThinkingHasManyNames) {
  const auto variables = [](const std::string& fields) {
    return boost::json::serialize(GoodChat(fields).prompt.template_kwargs);
  };
  EXPECT_EQ(variables(""), "{}");
  EXPECT_EQ(variables(R"("chat_template_kwargs": {"enable_thinking": false})"),
            R"({"enable_thinking":false,"thinking":false})");
  EXPECT_EQ(variables(R"("chat_template_kwargs": {"thinking": true})"),
            R"({"thinking":true,"enable_thinking":true})");
  EXPECT_EQ(variables(R"("chat_template_kwargs": {"thinking": true, "enable_thinking": false})"),
            R"({"thinking":true,"enable_thinking":false})");
  EXPECT_EQ(variables(R"("reasoning_effort": "none")"),
            R"({"reasoning_effort":"none","thinking":false,"enable_thinking":false})");
  EXPECT_EQ(variables(R"("reasoning_effort": "high")"),
            R"({"reasoning_effort":"high","thinking":true,"enable_thinking":true})");
  EXPECT_EQ(variables(R"("reasoning_effort": "none", "chat_template_kwargs": {"thinking": true})"),
            R"({"thinking":true,"reasoning_effort":"none","enable_thinking":true})");
  EXPECT_EQ(BadChat(R"("reasoning_effort": "utmost")"), "reasoning_effort");
  EXPECT_EQ(BadChat(R"("reasoning_effort": 3)"), "reasoning_effort");
  const std::string off = R"({"thinking":false,"enable_thinking":false})";
  EXPECT_EQ(variables(R"("thinking": {"type": "disabled"})"), off);
  EXPECT_EQ(variables(R"("enable_thinking": false)"), off);
  EXPECT_EQ(variables(R"("reasoning": {"enabled": false})"), off);
  EXPECT_EQ(variables(R"("thinking": {"type": "enabled"}, "reasoning": {"effort": "none"})"),
            R"({"reasoning_effort":"none","thinking":true,"enable_thinking":true})");
  EXPECT_EQ(BadChat(R"("thinking": {"type": "maybe"})"), "thinking.type");
  EXPECT_EQ(BadChat(R"("reasoning": {"max_tokens": 5})"), "reasoning.max_tokens");
}

TEST(ParseChat, ToolChoiceNoneLeavesTheToolsOut) {
  EXPECT_TRUE(GoodChat(R"("tools": [{"function": {"name": "f"}}], "tool_choice": "none")")
                  .prompt.tools.empty());
  EXPECT_EQ(GoodChat(R"("tools": [{"function": {"name": "f"}}])").prompt.tools.size(), 1u);
}

TEST(ParseChat, BadMessages) {
  EXPECT_NE(BadMessages("[]"), "");
  EXPECT_NE(BadMessages("\"hi\""), "");
  EXPECT_NE(BadMessages("[1]"), "");
  EXPECT_NE(BadMessages(R"([{"content": "hi"}])"), "");
  EXPECT_NE(BadMessages(R"([{"role": "robot", "content": "hi"}])"), "");
  EXPECT_NE(BadMessages(R"([{"role": "user"}])"), "");
  EXPECT_NE(BadMessages(R"([{"role": "user", "content": 7}])"), "");
  EXPECT_NE(BadMessages(R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])"), "");
  EXPECT_EQ(BadMessages(R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
            "messages[0].content[0] is of type \"image_url\"; this model reads text only");
}

TEST(ParseCompletion, EveryFormOfPrompt) {
  CompletionRequest request;
  const auto prompts = [&](const std::string& prompt) {
    request = {};
    const auto error = Parse(&ParseCompletion, R"({"prompt": )" + prompt + "}", &request);
    EXPECT_FALSE(error) << error->message;
    return request.prompts;
  };
  const std::vector<TokenId> ids = {TokenId{1}, TokenId{2}};
  EXPECT_EQ(prompts(R"("a")"), std::vector<TextOrTokens>{"a"});
  EXPECT_EQ(prompts(R"(["a", "b"])"), (std::vector<TextOrTokens>{"a", "b"}));
  EXPECT_EQ(prompts("[1, 2]"), std::vector<TextOrTokens>{ids});
  EXPECT_EQ(prompts("[[1, 2], \"a\"]"), (std::vector<TextOrTokens>{ids, "a"}));
  for (const char* bad : {"null", "7", "[]", "[[]]", "[1, \"a\"]", "[100]", "[-1]", "[[1.5]]"}) {
    EXPECT_TRUE(Parse(&ParseCompletion, std::string(R"({"prompt": )") + bad + "}", &request))
        << bad;
  }
}

TEST(ParseCompletion, NothingNeedBeGeneratedWithEcho) {
  CompletionRequest request;
  EXPECT_FALSE(Parse(&ParseCompletion, R"({"prompt": "a", "max_tokens": 0, "echo": true,
                                           "logprobs": 2})",
                     &request));
  EXPECT_EQ(request.params.max_tokens, 0);
  EXPECT_EQ(request.params.sampling.logprobs, 2);
  EXPECT_TRUE(Parse(&ParseCompletion, R"({"prompt": "a", "max_tokens": 0})", &request));
}

// Their number is bounded, and they are of tokens that are generated.
TEST(ParseCompletion, LogprobTokenIds) {
  const auto parse = [](const std::string& fields, CompletionRequest* request) {
    const auto error = Parse(&ParseCompletion, R"({"prompt": "a", )" + fields + "}", request);
    return error ? error->param : "";
  };
  CompletionRequest request;
  EXPECT_EQ(parse(R"("logprobs": 2, "logprob_token_ids": [7, 5, 7, 0, 5])", &request), "");
  EXPECT_EQ(request.params.sampling.logprob_token_ids,
            (std::vector<TokenId>{TokenId{7}, TokenId{5}, TokenId{0}}));
  EXPECT_EQ(request.params.sampling.logprobs, 2);  // of what is echoed
  std::string ids = "1";
  for (int i = 1; i < kMaxLogprobTokenIds; ++i) ids += ", 1";
  EXPECT_EQ(parse(R"("logprobs": 0, "logprob_token_ids": [)" + ids + "]", &request), "");
  for (const std::string bad : {R"("logprobs": 0, "logprob_token_ids": [1, )" + ids + "]",
                                std::string(R"("logprob_token_ids": [1])"),
                                std::string(R"("logprobs": 0, "max_tokens": 0, "echo": true,
                                                "logprob_token_ids": [1])")}) {
    CompletionRequest refused;
    EXPECT_EQ(parse(bad, &refused), "logprob_token_ids") << bad;
  }
}

TEST(ParseCompletion, ChoicesAreBounded) {
  CompletionRequest request;
  EXPECT_TRUE(Parse(&ParseCompletion, R"({"prompt": ["a", "b", "c"], "n": 3})", &request));
  EXPECT_FALSE(Parse(&ParseCompletion, R"({"prompt": ["a", "b"], "n": 4})", &request));
}

TEST(JsonBody, SaysWhereTheMistakeIs) {
  JsonBody body;
  const auto message = [&](const char* text) { return JsonBody::Parse(text, {}, &body)->message; };
  EXPECT_EQ(message(R"({"a": 1,})"), "the body is not JSON: syntax error at byte 8");
  EXPECT_EQ(message(R"({'a': 1})"), "the body is not JSON: syntax error at byte 1");
  EXPECT_EQ(message(R"({"a": )"), "the body is not JSON: incomplete JSON at byte 6");
  EXPECT_EQ(message(R"({"a": 1} x)"),
            "the body is not JSON: there is more after its end at byte 9");
}

TEST(JsonBody, BoundsDepthAndMemory) {
  JsonBody body;
  const std::string deep = R"({"a": )" + std::string(1000, '[') + std::string(1000, ']') + "}";
  EXPECT_NE(JsonBody::Parse(deep, {}, &body)->message.find("deeper than 64"), std::string::npos);
  EXPECT_TRUE(JsonBody::Parse("", {}, &body));
  EXPECT_TRUE(JsonBody::Parse("[]", {}, &body));
  EXPECT_TRUE(JsonBody::Parse("{\"a\": \"\xff\"}", {}, &body));
  EXPECT_TRUE(JsonBody::Parse(R"({"a": "\ud800"})", {}, &body));
  EXPECT_TRUE(JsonBody::Parse("{} x", {}, &body));
  for (const char* dense : {"[],", "{},", "1,", "\"\",", "[[]],", "{\"\":1},"}) {
    std::string text = "{\"a\":[";
    for (int i = 0; i < 100'000; ++i) text += dense;
    text.back() = ']';
    EXPECT_FALSE(JsonBody::Parse(text + "}", {}, &body)) << dense;
  }
}

// Bytes cut out of and put into good requests: an error or a request, never anything else.
TEST(ParseRequests, SurviveDamage) {
  const std::string good =
      R"({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]},
          {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [1]}}}],
          "prompt": [[1, 2], "a"], "tokens": [1, 2], "logit_bias": {"1": 2}, "stop": ["s"], "n": 2,
          "stream": true, "stream_options": {"include_usage": true}, "seed": 9223372036854775807})";
  constexpr std::string_view kPieces[] = {"null", "-1", "1e400", "[]",      "{}",
                                          "\"",   ",",  "true",  "\\u0000", "9223372036854775808"};
  Rng rng(7);
  int parsed = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (uint32_t i = 0; i <= rng.Below(3); ++i) {
      const size_t at = rng.Below(static_cast<uint32_t>(text.size()));
      text.replace(at, rng.Below(8), kPieces[rng.Below(std::size(kPieces))]);
    }
    JsonBody body;
    if (JsonBody::Parse(text, {}, &body)) continue;
    ++parsed;
    ChatRequest chat;
    CompletionRequest completion;
    TokenizeRequest tokenize;
    DetokenizeRequest detokenize;
    (void)ParseChat(body.object(), kLimits, &chat);
    (void)ParseCompletion(body.object(), kLimits, &completion);
    (void)ParseTokenize(body.object(), kLimits, &tokenize);
    (void)ParseDetokenize(body.object(), kLimits, &detokenize);
  }
  EXPECT_GT(parsed, 500);
}

}  // namespace
}  // namespace fathom
