// Dense JSON ("{},{},") took up to 120 times its size, outside every budget: 32 MiB of it made
// gigabytes of tools, or of a template's variables.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "base/work_limits.h"
#include "chat/chat_template.h"
#include "server/json_body.h"
#include "server/openai_request.h"

namespace fathom {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string Repeated(const std::string& piece, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += piece;
  text.pop_back();
  return text;
}

TEST(DenseJson, IsRefusedBeyondItsMemory) {
  for (const char* piece : {"{},", "[],", "1,", "\"\",", "[1],", "{\"a\":1},", "{\"a\":{}},"}) {
    const std::string text = "{\"a\":[" + Repeated(piece, 8 * kMiB) + "]}";
    MemoryBudget budget(size_t{1} << 30);
    MemoryClaim claim(budget);
    claim.SetLimit(MaxRequestMemory(text.size()));
    ASSERT_TRUE(claim.Grow(text.size()).ok());
    {
      JsonBody body;
      const auto error = JsonBody::Parse(text, {.memory = &claim}, &body);
      const ChatTemplate parsed = ChatTemplate::Parse("{{ a|length }}").value();
      if (error) {
        EXPECT_EQ(error->status, 413) << piece;
      } else {
        const auto rendered = parsed.Render(body.object(), {}, {.memory = &claim});
        EXPECT_EQ(rendered.status().code(), StatusCode::kResourceExhausted) << piece;
      }
    }
    EXPECT_LE(claim.peak(), MaxRequestMemory(text.size()));
    claim.Reset();
    EXPECT_EQ(budget.used(), 0u) << "not given back";
  }
}

// A small body has no use of the memory that any may take: what it takes follows its size. Most for
// its size takes a list of a few values more than the parser had places for.
TEST(DenseJson, SmallBodiesTakeLittle) {
  const ChatTemplate reads = ChatTemplate::Parse("{{ a|length }}").value();
  for (const char* piece : {"{},", "[],", "1,", "\"\",", "[1],", "{\"a\":1},", "{\"a\":{}},"}) {
    for (size_t bytes = 1 << 10; bytes <= 256 << 10; bytes += bytes / 16) {
      const std::string text = "{\"a\":[" + Repeated(piece, bytes - 8) + "]}";
      MemoryBudget budget(size_t{1} << 30);
      MemoryClaim claim(budget);
      ASSERT_TRUE(claim.Grow(text.size()).ok());
      JsonBody body;
      ASSERT_FALSE(JsonBody::Parse(text, {.memory = &claim}, &body));
      EXPECT_LE(claim.peak(), (size_t{64} << 10) + 38 * text.size()) << bytes << " of " << piece;
      ASSERT_TRUE(reads.Render(body.object(), {}, {.memory = &claim}).ok());
      EXPECT_LE(claim.peak(), (size_t{64} << 10) + 64 * text.size()) << bytes << " of " << piece;
    }
  }
}

TEST(DenseJson, OrdinaryRequestsFit) {
  const std::string tool =
      R"({"type": "function", "function": {"name": "look_up", "description": "Looks a word up.",)"
      R"("parameters": {"type": "object", "properties": {"word": {"type": "string",)"
      R"("description": "The word."}, "limit": {"type": "integer"}}, "required": ["word"]}}},)";
  const std::string text = R"({"messages": [{"role": "user", "content": ")" +
                           std::string(4 * kMiB, 'x') + R"("}], "tools": [)" +
                           Repeated(tool, 250 * tool.size()) + "]}";
  MemoryBudget budget(size_t{1} << 30);
  MemoryClaim claim(budget);
  claim.SetLimit(MaxRequestMemory(text.size()));
  JsonBody body;
  const auto error = JsonBody::Parse(text, {.memory = &claim}, &body);
  ASSERT_FALSE(error) << error->message;
  ChatRequest request(body.storage());
  ASSERT_FALSE(ParseChat(body.object(), {.vocab_size = 10, .max_model_len = 10}, &request));
  const ChatTemplate parsed =
      ChatTemplate::Parse("{{ tools|length }} {{ tools[7]|tojson|length }}").value();
  const auto rendered = parsed.Render({{"tools", request.prompt.tools}}, {}, {.memory = &claim});
  ASSERT_TRUE(rendered.ok()) << rendered.status().message();
  EXPECT_EQ(rendered->text().substr(0, 4), "250 ");
  EXPECT_LT(claim.peak(), 8 * kMiB + 8 * text.size() / 4);  // far from the limit
}

// They were copied to be compared, within the request's memory, and the process ended where that
// had no room: a body of 4 MB, or a smaller one that nests, ended the server.
TEST(DenseJson, ToolsOfOneNameAreComparedWhereTheyAre) {
  std::string nested = R"({"type": "object"})";
  for (int i = 0; i < 20; ++i) nested = R"({"anyOf": [)" + nested + R"(, {"type": "string"}]})";
  const std::string tool =
      R"({"type": "function", "function": {"name": "f", "parameters": )" + nested + "}},";
  const std::string text = R"({"messages": [{"role": "user", "content": "x"}], "tools": [)" +
                           Repeated(tool, 1000 * tool.size()) + "]}";
  MemoryBudget budget(size_t{1} << 30);
  MemoryClaim claim(budget);
  JsonBody body;
  ASSERT_FALSE(JsonBody::Parse(text, {.memory = &claim}, &body));
  const size_t parsed = claim.held();
  ChatRequest request(body.storage());
  ASSERT_FALSE(ParseChat(body.object(), {.vocab_size = 10, .max_model_len = 10}, &request));
  EXPECT_EQ(request.prompt.tools.size(), 1000u);
  EXPECT_LT(claim.peak(), 3 * parsed);
}

// Boost.JSON keeps the last of two members of a name; others keep the first.
TEST(DenseJson, NamesAKeyOnceAndHoldsNoNull) {
  JsonBody body;
  for (const char* twice : {R"({"a": 1, "a": 2})", R"({"a": [{"b": {"c": 1, "d": 2, "c": 3}}]})"}) {
    const auto error = JsonBody::Parse(twice, {}, &body);
    ASSERT_TRUE(error) << twice;
    EXPECT_NE(error->message.find("names a key twice"), std::string::npos);
  }
  EXPECT_FALSE(JsonBody::Parse(R"({"a": {"b": 1}, "b": {"a": 1}})", {}, &body));
  for (const char* null : {R"({"a": "x\u0000y"})", R"({"x\u0000": 1})"}) {
    const auto error = JsonBody::Parse(null, {}, &body);
    ASSERT_TRUE(error) << null;
    EXPECT_NE(error->message.find("\\u0000"), std::string::npos);
  }
}

}  // namespace
}  // namespace fathom
