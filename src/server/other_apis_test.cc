// Requests of the Messages and the Responses API, as chat requests.
#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/rng.h"
#include "server/json_body.h"
#include "server/messages_request.h"
#include "server/openapi.h"
#include "server/responses_request.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr RequestLimits kLimits{
    .defaults = {}, .vocab_size = 100, .max_model_len = 64, .max_choices = 8, .max_eos_tokens = 1};

struct Read {
  JsonBody body;  // in whose storage `chat` lives
  std::optional<ApiError> error;
  std::optional<ChatRequest> chat;
  std::string said() const { return error ? error->message : ""; }
  std::string param() const { return error ? error->param : ""; }
};

const std::string kMost = R"("max_tokens": 9)";

Read Messages(const std::string& fields, const std::string& most = kMost + ", ") {
  Read read;
  read.error = JsonBody::Parse("{" + most + fields + "}", {}, &read.body);
  if (read.error) return read;
  read.chat.emplace(read.body.storage());
  read.error = ParseMessages(read.body.object(), kLimits, /*generates=*/true, &*read.chat);
  return read;
}

Read Responses(const std::string& fields, const std::string& earlier = "[]") {
  Read read;
  read.error = JsonBody::Parse("{" + fields + "}", {}, &read.body);
  if (read.error) return read;
  ResponsesRequest request(read.body.storage());
  read.error =
      ParseResponses(read.body.object(), kLimits, json::parse(earlier).as_array(), &request);
  read.chat = std::move(request.chat);
  return read;
}

const std::string kHi = R"("messages": [{"role": "user", "content": "hi"}])";
const std::string kInput = R"("input": "hi")";

// Of both: what is read of `field`, which stands in the body as it would in a chat's.
std::array<Read, 2> Both(const std::string& field) {
  return {Messages(kHi + ", " + field), Responses(kInput + ", " + field)};
}

TEST(ParseMessages, AUserSaysSomething) {
  EXPECT_EQ(Messages(R"("messages": [{"role": "user", "content": []}])").said(),
            "messages[0].content must not be empty");
  EXPECT_EQ(Messages(kHi).said(), "");
  EXPECT_EQ(Messages(R"("messages": [{"role": "system", "content": "hi"}])").said(),
            "messages must hold one of the user's");
  EXPECT_EQ(Messages(kHi + R"(, "tools": [{"name": "f"}])").said(),
            "tools[0].input_schema is required");
  EXPECT_EQ(Responses(R"("input": [{"role": "user"}])").said(), "input[0].content is required");
  EXPECT_EQ(
      Responses(R"("input": [{"role": "user", "content": "hi"}, {"role": "assistant"}])").said(),
      "input[1].content is required");
}

TEST(OtherApis, TakeAChatsFields) {
  for (const Read& read : Both(R"("top_k": 3, "min_p": 0.1, "presence_penalty": 1,
      "frequency_penalty": 0.5, "repetition_penalty": 1.5, "logit_bias": {"5": -1}, "seed": 7,
      "stop_token_ids": [9], "include_stop_str_in_output": true, "min_tokens": 2,
      "ignore_eos": true, "skip_special_tokens": false, "cache_salt": "s",
      "truncate_prompt_tokens": 4, "truncation_side": "right", "enable_thinking": true)")) {
    ASSERT_EQ(read.said(), "");
    const GenerationParams& params = read.chat->params;
    const SamplingParams& sampling = params.sampling;
    EXPECT_EQ(sampling.top_k, 3);
    EXPECT_FLOAT_EQ(sampling.min_p, 0.1f);
    EXPECT_EQ(sampling.presence_penalty, 1);
    EXPECT_EQ(sampling.frequency_penalty, 0.5f);
    EXPECT_EQ(sampling.repetition_penalty, 1.5f);
    EXPECT_EQ(sampling.logit_bias.size(), 1);
    EXPECT_EQ(sampling.seed, 7);
    EXPECT_EQ(params.stop_token_ids.size(), 1);
    EXPECT_TRUE(params.include_stop_str_in_output && params.ignore_eos);
    EXPECT_EQ(params.min_tokens, 2);
    EXPECT_FALSE(params.skip_special_tokens);
    EXPECT_EQ(params.cache_salt, "s");
    EXPECT_EQ(params.truncate_prompt_tokens, 4);
    EXPECT_TRUE(params.truncate_right);
    EXPECT_EQ(read.chat->prompt.template_kwargs.at("thinking"), json::value(true));
  }
  for (const Read& read : Both(R"("bad_words": ["x"], "allowed_token_ids": [5])")) {
    ASSERT_EQ(read.said(), "");
    EXPECT_EQ(read.chat->params.bad_words.size(), 1);
    EXPECT_EQ(read.chat->params.allowed_token_ids.size(), 1);
  }
  const std::pair<const char*, const char*> grammars[] = {
      {R"("structured_outputs": {"regex": "a"})", "structured_outputs.regex"},
      {R"("guided_json": {})", "guided_json"},
      {R"("guided_regex": "a")", "guided_regex"},
      {R"("guided_choice": ["a"])", "guided_choice"},
      {R"("guided_grammar": "root ::= \"a\"")", "guided_grammar"},
      {R"("json_schema": "{}")", "json_schema"},
      {R"("regex": "a")", "regex"},
      {R"("ebnf": "x")", "ebnf"}};
  for (const auto& [field, param] : grammars) {
    for (const Read& read : Both(field)) {
      ASSERT_EQ(read.said(), "");
      ASSERT_TRUE(read.chat->params.grammar) << field;
      EXPECT_EQ(read.chat->params.grammar->param, param);
    }
  }
}

TEST(OtherApis, WhatTheyHaveNoPlaceForIsRefusedByName) {
  const std::pair<const char*, const char*> fields[] = {
      {"n", "2"},
      {"logprobs", "true"},
      {"logprob_token_ids", "[5]"},
      {"top_logprobs", "2"},
      {"prompt_logprobs", "1"},
      {"return_token_ids", "true"},
      {"return_tokens_as_token_ids", "true"},
      {"echo", "true"},
      {"include_reasoning", "false"},
      {"continue_final_message", "true"},
      {"add_generation_prompt", "false"},
      {"add_special_tokens", "true"},
      {"functions", "[]"},
      {"function_call", "\"auto\""},
      {"max_completion_tokens", "5"},
      {"response_format", R"({"type": "json_object"})"},
      {"priority", "1"},
      {"thinking_token_budget", "5"},
      {"lora_path", "\"x\""},
      {"vllm_xargs", R"({"a": 1})"},
      {"mm_processor_kwargs", R"({"a": 1})"},
      {"guided_decoding_backend", "\"outlines\""},
      {"best_of", "2"},
      {"stop_regex", "\"x\""},
      {"grammar", "\"x\""},
      {"documents", "[{}]"},
      {"chat_template", "\"x\""}};
  for (const auto& [key, value] : fields) {
    for (const Read& read : Both(fmt::format("\"{}\": {}", key, value))) {
      EXPECT_EQ(read.param(), key);
      EXPECT_TRUE(read.said().starts_with(key)) << read.said();
    }
    for (const Read& read : Both(fmt::format("\"{}\": null", key))) EXPECT_EQ(read.said(), "");
  }
  for (const char* harmless :
       {R"("n": 1)", R"("logprobs": false)", R"("echo": false)", R"("vllm_xargs": {})",
        R"("guided_decoding_backend": "auto")", R"("stream": true, "stream_options":
           {"include_usage": true})"}) {
    for (const Read& read : Both(harmless)) EXPECT_EQ(read.said(), "") << harmless;
  }
  for (const Read& read :
       Both(R"("stream": true, "stream_options": {"continuous_usage_stats": true})")) {
    EXPECT_EQ(read.param(), "stream_options.continuous_usage_stats");
  }
  for (const char* key : {"stop", "reasoning", "reasoning_effort"}) {
    EXPECT_EQ(Messages(kHi + fmt::format(", \"{}\": \"low\"", key)).param(), key);
  }
  EXPECT_EQ(Messages(kHi + R"(, "parallel_tool_calls": false)").param(), "parallel_tool_calls");
  for (const char* key : {"messages", "max_tokens", "previous_input_messages"}) {
    EXPECT_EQ(Responses(kInput + fmt::format(", \"{}\": 5", key)).param(), key);
  }
}

// A value that no field of that name may have is refused where it is not ignored.
TEST(OtherApis, NoFieldOfAChatIsIgnored) {
  const json::value description = json::parse(kOpenApi);
  const json::object& chat =
      description.at_pointer("/components/schemas/ChatRequest/properties").as_object();
  EXPECT_GT(chat.size(), 40);
  for (const auto& [key, schema] : chat) {
    const json::value* type = schema.as_object().if_contains("type");
    const bool is_object = type != nullptr && *type == json::value("object");
    const std::string_view name = key;
    const std::string field = fmt::format("\"{}\": {}", name, is_object ? "5" : "{\"a\": 1}");
    std::string around;
    if (name != "messages") around += ", " + kHi;
    if (name != "max_tokens") around += ", " + kMost;
    for (const Read& read : {Messages(field + around, ""), Responses(field + ", " + kInput)}) {
      EXPECT_TRUE(read.param().starts_with(name)) << name << ": " << read.said();
    }
  }
}

TEST(OtherApis, ErrorsHaveTheNamesOfTheApi) {
  EXPECT_EQ(Messages(kHi + R"(, "stop_sequences": [""])").said(),
            "stop_sequences must not hold an empty string: every text has one");
  EXPECT_EQ(Messages(kHi + R"(, "output_config": {"effort": "stop"})").param(),
            "output_config.effort");
  EXPECT_EQ(Messages(kHi + R"(, "tools": [{"name": "", "input_schema": {}}])").said(),
            "tools[0].name must be a name of 1 to 256 bytes");
  EXPECT_EQ(
      Messages(kHi + R"(, "tools": [{"name": "f", "input_schema": {"type": "array"}}])").said(),
      "tools[0].input_schema.type is \"array\": the arguments of \"f\" must be an object, so "
      "that the schema's type must be \"object\"");
  const std::string min = R"("min_tokens": 20)";
  EXPECT_EQ(Messages(kHi + ", " + min).said(), "min_tokens must be at most max_tokens (9), not 20");
  EXPECT_EQ(Responses(kInput + R"(, "max_output_tokens": 9, )" + min).said(),
            "min_tokens must be at most max_output_tokens (9), not 20");
  const auto format = [](const std::string& fields) {
    return Responses(kInput + R"(, "text": {"format": {)" + fields + "}}");
  };
  EXPECT_EQ(format(R"("type": "json_schema", "schema": {})").said(),
            "text.format.name is required: any name");
  EXPECT_EQ(format(R"("type": "json_schema", "name": "n")").said(),
            "text.format.schema is required");
  EXPECT_EQ(format(R"("type": "xml")").param(), "text.format.type");
  EXPECT_EQ(
      format(R"("type": "json_schema", "name": "n", "schema": {})").chat->params.grammar->param,
      "text.format.schema");
  EXPECT_EQ(format(R"("type": "structural_tag", "format": {"type": "any_text"})").said(), "");
  EXPECT_EQ(Responses(kInput + R"(, "reasoning": {"effort": "messages"})").param(),
            "reasoning.effort");
  EXPECT_EQ(Responses(kInput + R"(, "tools": [{"type": "function", "name": "f",
                                               "parameters": {"type": "array"}}])")
                .param(),
            "tools[0].parameters.type");
  EXPECT_EQ(InWordsOfResponses(BadParameter("messages", "\"messages\" in the messages")).message,
            "\"messages\" in the input");
}

TEST(OtherApis, ResultsBelongToCalls) {
  const std::string output = R"({"type": "function_call_output", "call_id": "c", "output": "x"})";
  const std::string call =
      R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})";
  EXPECT_EQ(Responses(R"("input": [)" + output + "]").said(),
            "input[0].call_id is \"c\": no function_call before has that call_id");
  EXPECT_EQ(Responses(R"("input": [)" + call + ", " + output + "]").said(), "");
  EXPECT_EQ(Responses(R"("input": [)" + output + "]",
                      R"([{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type":
                          "function", "function": {"name": "f", "arguments": "{}"}}]}])")
                .said(),
            "");
  // So a model may have written it, and its answer is sent back.
  EXPECT_EQ(Responses(R"("input": [{"type": "function_call", "call_id": "c", "name": "f",
                                    "arguments": "{"}])")
                .said(),
            "");
  const std::string use = R"({"role": "assistant", "content": [{"type": "tool_use", "id": "c",
                                "name": "f", "input": {}}]})";
  const std::string result = R"({"role": "user", "content": [{"type": "tool_result",
                                   "tool_use_id": "c", "content": "x"}]})";
  const std::string hi = R"({"role": "user", "content": "hi"})";
  const auto said = [](std::initializer_list<std::string> messages) {
    std::string all;
    for (const std::string& one : messages) all += (all.empty() ? "" : ", ") + one;
    return Messages("\"messages\": [" + all + "]").param();
  };
  EXPECT_EQ(said({hi, use, result}), "");
  EXPECT_EQ(said({hi, use, R"({"role": "assistant", "content": "so"})", result, result}), "");
  EXPECT_EQ(said({hi, result}), "messages[1].content[0].tool_use_id");
  EXPECT_EQ(said({hi, use, result, R"({"role": "assistant", "content": "so"})", result}),
            "messages[4].content[0].tool_use_id");
}

TEST(OtherApis, ReasoningAloneIsNoConversation) {
  const std::string reasoning = R"("instructions": "Be brief.", "input": [{"type": "reasoning"}])";
  EXPECT_EQ(Responses(reasoning).param(), "input");
  EXPECT_EQ(Responses(reasoning, R"([{"role": "user", "content": "hi"}])").said(), "");
}

// Bytes cut out of and put into good requests: an error or a request, never anything else.
TEST(OtherApis, SurviveDamage) {
  const std::string good =
      R"({"max_tokens": 5, "system": [{"type": "text", "text": "x"}], "messages": [
          {"role": "user", "content": [{"type": "text", "text": "x"}]},
          {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": []}]}],
          "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]},
          {"type": "reasoning", "summary": []}, {"type": "function_call", "call_id": "c", "name": "f",
           "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "x"}],
          "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
          "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]},
          "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}})";
  constexpr std::string_view kPieces[] = {"null", "-1", "[]", "{}", "\"", ",", "true", "x"};
  Rng rng(7);
  int parsed = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (uint32_t i = 0; i <= rng.Below(3); ++i) {
      const size_t at = rng.Below(static_cast<uint32_t>(text.size()));
      text.replace(at, rng.Below(24), kPieces[rng.Below(std::size(kPieces))]);
    }
    JsonBody body;
    if (JsonBody::Parse(text, {}, &body)) continue;
    ++parsed;
    ChatRequest chat(body.storage());
    ResponsesRequest responses(body.storage());
    for (const auto& error : {ParseMessages(body.object(), kLimits, /*generates=*/true, &chat),
                              ParseResponses(body.object(), kLimits, json::array(), &responses)}) {
      EXPECT_FALSE(error && (error->message.empty() || error->status != 400)) << text;
    }
  }
  EXPECT_GT(parsed, 500);
}

TEST(OtherApis, MetadataAreStrings) {
  for (const Read& read : Both(R"("metadata": {"user_id": "me", "a": null})")) {
    EXPECT_EQ(read.said(), "");
  }
  for (const Read& read : Both(R"("metadata": {"a": 5})")) EXPECT_EQ(read.param(), "metadata.a");
}

TEST(OtherApis, SomeToolsAreAllowed) {
  const std::string tools = R"(, "tools": [{"type": "function", "name": "f"},
      {"type": "function", "name": "g", "strict": true}], "tool_choice": {"type": "allowed_tools", )";
  const Read one = Responses(
      kInput + tools + R"("mode": "required", "tools": [{"type": "function", "name": "f"}]})");
  ASSERT_EQ(one.said(), "");
  EXPECT_TRUE(one.chat->prompt.must_call);
  ASSERT_EQ(one.chat->prompt.tools.size(), 1);
  EXPECT_EQ(one.chat->prompt.tools.at(0).at("function").at("name"), json::value("f"));
  EXPECT_TRUE(one.chat->prompt.strict_tools.empty());
  EXPECT_EQ(
      Responses(kInput + tools + R"("mode": "auto", "tools": [{"type": "mcp", "name": "f"}]})")
          .param(),
      "tool_choice");
}

}  // namespace
}  // namespace fathom
