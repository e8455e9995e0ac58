// Fields of a chat that change its prompt or its answer.
#include <gtest/gtest.h>

#include "server/json_body.h"
#include "server/openai_request.h"
#include "server/routes.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr RequestLimits kLimits{
    .defaults = {}, .vocab_size = 100, .max_model_len = 64, .max_choices = 8, .max_eos_tokens = 1};

std::optional<ApiError> Parse(const std::string& fields, ChatRequest* request,
                              const RequestLimits& limits = kLimits) {
  JsonBody body;
  if (auto error = JsonBody::Parse("{" + fields + "}", {}, &body)) return error;
  return ParseChat(body.object(), limits, request);
}

// The param that the error names.
std::string Bad(const std::string& fields) {
  ChatRequest request;
  const auto error = Parse(fields, &request);
  return error ? error->param : "";
}

const std::string kHi = R"("messages": [{"role": "user", "content": "hi"}])";

TEST(ChatFields, WhatWouldBeAnotherAnswerIsRefusedByName) {
  for (const char* field : {"grammar", "stop_regex", "thinking_token_budget", "kv_transfer_params",
                            "repetition_detection", "guided_decoding_backend", "structural_tag"}) {
    EXPECT_EQ(Bad(kHi + ", \"" + field + "\": \"x\""), field);
    EXPECT_EQ(Bad(kHi + ", \"" + field + "\": null"), "");
  }
  EXPECT_EQ(Bad(kHi + R"(, "web_search_options": {})"), "web_search_options");
  EXPECT_EQ(Bad(kHi + R"(, "web_search_options": null)"), "");
  ChatRequest request;
  EXPECT_EQ(Parse(kHi + R"(, "structural_tag": "{}")", &request)->message,
            "structural_tag is not supported: say structured_outputs.structural_tag");
  EXPECT_EQ(Bad(kHi + R"(, "priority": 1)"), "priority");
  EXPECT_EQ(Bad(kHi + R"(, "priority": 0)"), "");
  EXPECT_EQ(Bad(kHi + R"(, "separate_reasoning": false)"), "separate_reasoning");
  const std::string strict =
      kHi + R"(, "tools": [{"type": "function", "function": {"name": "f", "strict": true}}])";
  EXPECT_EQ(Bad(strict), "");
  EXPECT_EQ(Bad(strict + R"(, "ignore_eos": true)"), "ignore_eos");
  EXPECT_EQ(Bad(strict + R"(, "ignore_eos": true, "tool_choice": "none")"), "");
  EXPECT_EQ(Bad(kHi + R"(, "stream": true, "prompt_logprobs": 1)"), "prompt_logprobs");
}

TEST(ChatFields, WhatNobodyHereDoesMayBeEmpty) {
  const std::pair<const char*, const char*> fields[] = {
      {"lora_path", "\"\""},         {"vllm_xargs", "{}"},
      {"mm_processor_kwargs", "{}"}, {"media_io_kwargs", "{}"},
      {"custom_params", "{}"},       {"input_ids", "[]"},
      {"no_stop_trim", "false"},     {"guided_decoding_backend", "\"xgrammar\""},
      {"verbosity", "\"medium\""},   {"add_special_tokens", "false"}};
  for (const auto& [field, harmless] : fields) {
    EXPECT_EQ(Bad(kHi + fmt::format(", \"{}\": {}", field, harmless)), "");
    EXPECT_EQ(Bad(kHi + fmt::format(", \"{}\": [\"x\"]", field)), field);
  }
  EXPECT_EQ(Bad(kHi + R"(, "metadata": {"a": "b", "c": 1})"), "metadata.c");
}

const std::string kTwoTools = R"(, "tools": [{"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "g", "strict": true}}])";

TEST(ChatFields, ToolsOfOneNameAreOneTool) {
  const auto tools = [](const std::string& one, const std::string& other) {
    const std::string tool = R"({"type": "function", "function": {"name": "f", "parameters": {)";
    return kHi + ", \"tools\": [" + tool + one + "}}}, " + tool + other + "}}}]";
  };
  EXPECT_EQ(Bad(tools("", R"("type": "object")")), "tools");
  EXPECT_EQ(Bad(tools(R"("type": "object")", R"("type": "object")")), "");
}

TEST(ChatFields, ChoicesAreAsManyAsAnEnums) {
  const auto choices = [](size_t count, size_t length) {
    std::string list;
    for (size_t i = 0; i < count; ++i) {
      list += fmt::format("{}\"{:0{}}\"", i > 0 ? "," : "", i, length);
    }
    return kHi + ", \"guided_choice\": [" + list + "]";
  };
  EXPECT_EQ(Bad(choices(2000, 65)), "");
  EXPECT_EQ(Bad(choices(2001, 4)), "guided_choice");
  ChatRequest request;
  EXPECT_EQ(Parse(choices(2000, 66), &request)->message,
            "guided_choice has 132000 bytes of strings: at most 131072 are possible");
}

TEST(ChatFields, SomeToolsAreAllowed) {
  const auto allowed = [](const std::string& mode, const std::string& names) {
    return kHi + kTwoTools +
           fmt::format(R"(, "tool_choice": {{"type": "allowed_tools", "allowed_tools":
                           {{"mode": "{}", "tools": [{}]}}}})",
                       mode, names);
  };
  const std::string g = R"({"type": "function", "function": {"name": "g"}})";
  ChatRequest request;
  EXPECT_FALSE(Parse(allowed("auto", g), &request));
  EXPECT_FALSE(request.prompt.must_call);
  ASSERT_EQ(request.prompt.tools.size(), 1);
  EXPECT_EQ(request.prompt.tools.at(0).at("function").at("name"), json::value("g"));
  EXPECT_EQ(request.prompt.strict_tools, std::vector<std::string>{"g"});
  EXPECT_EQ(Bad(allowed("required", g)), "");
  EXPECT_EQ(Bad(allowed("none", g)), "tool_choice");
  EXPECT_EQ(Bad(allowed("auto", "")), "tool_choice");
  EXPECT_EQ(Bad(allowed("auto", R"({"type": "function", "function": {"name": "h"}})")),
            "tool_choice");
  EXPECT_EQ(Bad(kHi + kTwoTools + R"(, "tool_choice": {"type": "custom", "name": "f"})"),
            "tool_choice");
}

TEST(ChatFields, ArgumentsOfToolsAreObjects) {
  const auto with = [](const std::string& type) {
    return kHi + R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters":
                        {"type": )" +
           type + "}}}]";
  };
  EXPECT_EQ(Bad(with("\"object\"")), "");
  EXPECT_EQ(Bad(with(R"(["null", "object"])")), "");
  EXPECT_EQ(Bad(with("\"array\"")), "tools[0].function.parameters.type");
  EXPECT_EQ(Bad(with(R"(["array", "null"])")), "tools[0].function.parameters.type");
}

// The grammar that fields ask for: its kind, text and whether it is strict, and who asks.
std::string Grammar(const std::string& fields) {
  ChatRequest request;
  const auto error = Parse(kHi + ", " + fields, &request);
  if (error) return "error in " + error->param;
  if (!request.params.grammar) return "none";
  const auto& [spec, param] = *request.params.grammar;
  return fmt::format("{}{} {} by {}", static_cast<int>(spec.kind), spec.strict ? " strict" : "",
                     spec.text, param);
}

TEST(ChatFields, FormsOfAnswers) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("response_format": {"type": "text"})", "none"},
      {R"("response_format": null, "structured_outputs": {"json": null})", "none"},
      {R"("response_format": {"type": "json_object"})", "0  by response_format"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
          "schema": {"type": "object"}}})",
       R"(1 strict {"type":"object"} by response_format.json_schema.schema)"},
      {R"("guided_json": "{\"enum\": [1]}")", R"(1 {"enum": [1]} by guided_json)"},
      {R"("json_schema": "{}")", "1 {} by json_schema"},
      {R"("guided_regex": "a+")", "2 a+ by guided_regex"},
      {R"("guided_choice": ["a", "b."])", R"(6 (a|b\.) by guided_choice)"},
      {R"("guided_grammar": "root ::= \"a\"")", R"(3 root ::= "a" by guided_grammar)"},
      {R"("ebnf": "x")", "3 x by ebnf"},
      {R"("structured_outputs": {"regex": "a", "json": null, "json_object": false})",
       "2 a by structured_outputs.regex"},
      {R"("structured_outputs": {"choice": ["x"]})", "6 (x) by structured_outputs.choice"},
      {R"("response_format": {"type": "xml"})", "error in response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "error in response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}}})",
       "error in response_format.json_schema.name"},
      {R"("structured_outputs": {"regex": "a", "backend": "xgrammar"})",
       "2 a by structured_outputs.regex"},
      {R"("structured_outputs": {"regex": "a", "backend": "outlines"})",
       "error in structured_outputs.backend"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})",
       "error in response_format.json_schema.schema"},
      {R"("structured_outputs": {"structural_tag": "x"})",
       "error in structured_outputs.structural_tag"},
      {R"("structured_outputs": {"structural_tag": "{\"format\": {\"type\": \"any_text\"}}"})",
       R"(4 {"type":"structural_tag","format":{"type":"any_text"}})"
       " by structured_outputs.structural_tag"},
      {R"("response_format": {"type": "structural_tag", "format": {"type": "any_text"}})",
       R"(4 {"type":"structural_tag","format":{"type":"any_text"}} by response_format)"},
      {R"("response_format": {"type": "structural_tag", "format": {"type": "token"}})",
       "error in response_format"},
      {R"("structured_outputs": {"regex": "a", "json": {}})", "error in structured_outputs.json"},
      {R"("structured_outputs": {"json": false})", "1 false by structured_outputs.json"},
      {R"("structured_outputs": {"regex": false})", "error in structured_outputs.regex"},
      {R"("structured_outputs": {"json_object": "yes"})",
       "error in structured_outputs.json_object"},
      {R"("structured_outputs": {"regex": "a", "disable_any_whitespace": false})",
       "2 a by structured_outputs.regex"},
      {R"("structured_outputs": {"regex": "a", "disable_any_whitespace": true})",
       "error in structured_outputs.disable_any_whitespace"},
      {R"("guided_choice": [])", "error in guided_choice"},
      {R"("guided_choice": ["a", 1])", "error in guided_choice"},
      {R"("guided_regex": "a", "response_format": {"type": "json_object"})",
       "error in guided_regex"},
      {R"("guided_regex": "a", "ignore_eos": true)", "error in ignore_eos"},
      {R"("guided_regex": "a", "min_tokens": 2)", "error in min_tokens"},
      {R"("guided_regex": "a", "tools": [{"type": "function", "function": {"name": "f"}}])",
       "error in tools"},
      {R"("guided_regex": "a", "tools": [{"type": "function", "function": {"name": "f"}}],
          "tool_choice": "none")",
       "2 a by guided_regex"},
  };
  for (const auto& [fields, asked] : cases) EXPECT_EQ(Grammar(fields), asked) << fields;
}

TEST(ChatFields, PartsOfOtherApisAreText) {
  ChatRequest request;
  EXPECT_FALSE(Parse(R"("messages": [{"role": "user", "content": [
      {"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"},
      {"type": "refusal", "refusal": "c"}, {"type": "thinking", "thinking": "d"}]}])",
                     &request));
  EXPECT_EQ(request.prompt.messages.at(0).at("content"), json::value("a\nb\nc\nd"));
  EXPECT_EQ(Bad(R"("messages": [{"role": "user", "content": [{"type": "refusal", "text": "c"}]}])"),
            "messages[0].content");
}

TEST(ChatFields, ArgumentsOfEarlierCallsAreObjects) {
  const auto with = [](const std::string& arguments) {
    return R"("messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1",
        "type": "function", "function": {"name": "f", "arguments": )" +
           arguments + "}}]}]";
  };
  for (const char* good : {R"("{\"x\": [1, {}]}")", R"("")", R"({"x": 1})"}) {
    EXPECT_EQ(Bad(with(good)), "") << good;
  }
  for (const char* bad : {R"("{\"x\": ")", R"("[1]")", R"("{} {}")", R"("x")", "5"}) {
    EXPECT_EQ(Bad(with(bad)), "messages[0].tool_calls[0].function.arguments") << bad;
  }
}

TEST(ChatFields, TheLastMessageGoesOn) {
  const std::string last =
      R"("messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so")";
  ChatRequest request;
  EXPECT_FALSE(Parse(last + R"(, "prefix": true}])", &request));
  EXPECT_TRUE(request.prompt.continue_final_message);
  EXPECT_FALSE(request.prompt.add_generation_prompt);
  ChatRequest named;
  EXPECT_FALSE(Parse(last + R"(}], "continue_final_message": true, "add_generation_prompt": false,
                              "echo": true)",
                     &named));
  EXPECT_TRUE(named.prompt.continue_final_message);
  EXPECT_EQ(named.echoed, "so");
  EXPECT_EQ(Bad(last + R"(}], "continue_final_message": true)"), "continue_final_message");
  EXPECT_EQ(Bad(kHi + R"(, "continue_final_message": true, "add_generation_prompt": false)"),
            "messages");
}

TEST(ChatFields, TemplateKwargsHaveDefaults) {
  const json::object defaults = {{"enable_thinking", false}, {"tone", "dry"}};
  RequestLimits limits = kLimits;
  limits.chat_defaults = &defaults;
  const auto kwargs = [&](const std::string& fields) {
    ChatRequest request;
    EXPECT_FALSE(Parse(kHi + fields, &request, limits));
    return request.prompt.template_kwargs;
  };
  EXPECT_EQ(kwargs(""),
            (json::object{{"thinking", false}, {"enable_thinking", false}, {"tone", "dry"}}));
  EXPECT_EQ(kwargs(R"(, "thinking": {"type": "enabled"}, "chat_template_kwargs": {"tone": "wet"})"),
            (json::object{{"tone", "wet"}, {"thinking", true}, {"enable_thinking", true}}));
}

TEST(Routes, PathsAreFoundAsTheyAreMeant) {
  for (const auto& [asked, path] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/models/", "/v1/models"},
           {"/chat/completions", "/v1/chat/completions"},
           {"/models/tiny-r1", "/v1/models/tiny-r1"},
           {"/v1/health", "/health"},
           {"/v1/responses/resp_1/cancel/", "/v1/responses/resp_1/cancel"},
           {"/nowhere", "/nowhere"},
           {"/", "/"}}) {
    EXPECT_EQ(CanonicalPath(asked), path);
  }
  EXPECT_EQ(FindRoute("/v1/responses/a/b"), nullptr);
  EXPECT_EQ(FindRoute("/v1/responses//cancel"), nullptr);
  EXPECT_EQ(RouteName("/v1/responses/resp_1"), "/v1/responses/{id}");
  EXPECT_NE(NoSuchPath("/v1/embeddings").find("no embeddings"), std::string::npos);
  EXPECT_NE(NoSuchPath("/v1/audio/speech").find("no audio"), std::string::npos);
  EXPECT_NE(NoSuchPath("/x").find("There is no /x"), std::string::npos);
}

}  // namespace
}  // namespace fathom
