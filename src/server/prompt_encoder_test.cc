#include "server/prompt_encoder.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <memory>

#include "server/openai_request.h"

namespace fathom {
namespace {

namespace json = boost::json;

const Tokenizer& TinyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("models/tiny-r1").value();
  return *tokenizer;
}

constexpr char kDeaf[] = "{% for m in messages %}{{ m['content'] or '' }}{% endfor %}";
constexpr char kUnclear[] = "{{ tools | tojson }}{{ messages[0]['content'] }}";
constexpr char kFenced[] =
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m['content'] or '' }}{% for c in m['tool_calls'] or [] %}"
    "{{ '<｜tool▁call▁begin｜>' + c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\\n' }}"
    "{{ '```json\\n' + c['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}"
    "{% endfor %}{% endfor %}";

// How an answer to a request with a tool is to be read, or what is wrong with it.
std::optional<ApiError> Encode(const std::string& chat_template, AnswerForm form,
                               OutputParserOptions* parser, bool with_tools = true) {
  const PromptEncoder encoder(TinyTokenizer(), ChatTemplate::Parse(chat_template).value(), form,
                              4096);
  ChatPrompt prompt;
  prompt.messages = {json::object{{"role", "user"}, {"content", "Hi"}}};
  if (with_tools) {
    prompt.tools = {json::object{
        {"type", "function"},
        {"function", {{"name", "f"}, {"description", ""}, {"parameters", json::object()}}}}};
  }
  std::vector<TokenId> tokens;
  return encoder.EncodeChat(std::move(prompt), {}, &tokens, parser);
}

TEST(PromptEncoder, ATemplateThatNeverReadsToolsIsSaid) {
  OutputParserOptions parser;
  const std::optional<ApiError> error = Encode(kDeaf, {}, &parser);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->param, "tools");
  EXPECT_NE(error->message.find("--chat-template"), std::string::npos);
  EXPECT_FALSE(Encode(kDeaf, {}, &parser, /*with_tools=*/false));
  EXPECT_FALSE(parser.parse_tools);
}

TEST(PromptEncoder, TheFormOfCallsIsTheTemplatesUnlessNamed) {
  OutputParserOptions parser;
  EXPECT_FALSE(Encode(kFenced, {}, &parser));
  EXPECT_TRUE(parser.parse_tools);
  EXPECT_EQ(parser.tool_call_form, ToolCallForm::kFenced);
  EXPECT_FALSE(Encode(kFenced, {.tool_calls = ToolCallForm::kNameFirst}, &parser));
  EXPECT_EQ(parser.tool_call_form, ToolCallForm::kNameFirst);
  EXPECT_FALSE(Encode(TinyTokenizer().chat_template(), {}, &parser));
  EXPECT_EQ(parser.tool_call_form, ToolCallForm::kNameFirst);

  const std::optional<ApiError> unclear = Encode(kUnclear, {}, &parser);
  ASSERT_TRUE(unclear);
  EXPECT_NE(unclear->message.find("--tool-call-parser"), std::string::npos);
  EXPECT_FALSE(Encode(kUnclear, {.tool_calls = ToolCallForm::kFenced}, &parser));
}

TEST(PromptEncoder, ReasoningStaysInTheContentWhereItIsToldTo) {
  OutputParserOptions parser;
  EXPECT_FALSE(Encode(kFenced, {.parse_reasoning = false}, &parser));
  EXPECT_FALSE(parser.parse_reasoning);
}

// A prompt of 90 tokens in a context of 100.
TEST(PromptEncoder, TokensOfAnAnswerAreTheLeastThatAnybodySays) {
  const PromptEncoder encoder(TinyTokenizer(), std::nullopt, {}, 100);
  const auto fitted = [&](std::optional<int32_t> asked, const SamplingDefaults& defaults) {
    GenerationParams params;
    params.max_tokens = asked;
    GenerationPrompt prompt{.tokens = std::vector<TokenId>(90, TokenId{5})};
    const auto error = encoder.FitTokens(params, "prompt", defaults, &prompt);
    EXPECT_FALSE(error) << error->message;
    return prompt.max_tokens;
  };
  EXPECT_EQ(fitted({}, {}), 10);
  EXPECT_EQ(fitted(4, {}), 4);
  EXPECT_EQ(fitted(50, {}), 10);
  // A model's default is nobody's limit, and may be more than the context.
  EXPECT_EQ(fitted({}, {.max_tokens = 3}), 3);
  EXPECT_EQ(fitted(4, {.max_tokens = 3}), 4);
  EXPECT_EQ(fitted({}, {.max_tokens = 5000}), 10);
  // An operator's is everybody's.
  EXPECT_EQ(fitted({}, {.max_tokens = 3, .most_tokens = 3}), 3);
  EXPECT_EQ(fitted(4, {.max_tokens = 3, .most_tokens = 3}), 3);
  EXPECT_EQ(fitted(2, {.max_tokens = 3, .most_tokens = 3}), 2);
  EXPECT_EQ(fitted({}, {.max_tokens = 16, .most_tokens = 3}), 3);
}

TEST(PromptEncoder, AShortageOfMemoryIsSaidAsWhereABodyIsRead) {
  const PromptEncoder encoder(TinyTokenizer(), ChatTemplate::Parse(kDeaf).value(), {}, 4096);
  const auto refusal = [&](MemoryBudget& budget, size_t limit) {
    MemoryClaim claim(budget);
    claim.SetLimit(limit);
    ChatPrompt prompt;
    prompt.messages = {json::object{{"role", "user"}, {"content", std::string(100'000, 'x')}}};
    std::vector<TokenId> tokens;
    OutputParserOptions parser;
    const auto error = encoder.EncodeChat(std::move(prompt), {.memory = &claim}, &tokens, &parser);
    return error.value_or(ApiError{.status = 200});
  };
  MemoryBudget budget(250'000);
  const ApiError too_large = refusal(budget, 50'000);
  MemoryClaim other(budget);
  ASSERT_TRUE(other.Grow(200'000).ok());
  const ApiError none_left = refusal(budget, 200'000);
  EXPECT_EQ(too_large.status, 413);
  EXPECT_TRUE(too_large.message.starts_with("The request takes more than 50000 bytes of memory"));
  EXPECT_EQ(none_left.status, 503);
  EXPECT_TRUE(none_left.message.starts_with("Too many large requests at once"));
}

}  // namespace
}  // namespace fathom
