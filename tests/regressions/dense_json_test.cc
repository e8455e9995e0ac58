// Dense JSON ("{},{},") took up to 120 times its size, outside every budget: 32 MiB of it made
// gigabytes of tools, or of a template's variables.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <initializer_list>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/work_limits.h"
#include "chat/chat_template.h"
#include "server/json_body.h"
#include "server/messages_request.h"
#include "server/openai_request.h"
#include "server/responses_request.h"

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
        const auto rendered = parsed.Render(body.Take(), {}, {.memory = &claim});
        EXPECT_EQ(rendered.status().code(), StatusCode::kResourceExhausted) << piece;
      }
    }
    EXPECT_LE(claim.peak(), MaxRequestMemory(text.size()));
    claim.Reset();
    EXPECT_EQ(budget.used(), 0u) << "not given back";
  }
}

// What a request holds at most, all in all, of its body `text`; if it is read, all of it.
struct Read {
  std::optional<ApiError> error;
  size_t peak = 0;
};
// `limit`: its own, beside which is what a template writes. `earlier`: the messages of a response
// that it goes on with, if it does.
Read ReadAll(const std::string& route, const std::string& text, size_t limit,
             const std::string& earlier = "") {
  static const ChatTemplate& form = *new ChatTemplate(
      ChatTemplate::Parse(
          "{{ a|length }}{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in "
          "m.tool_calls %}{{ c.id }}{{ c.function.arguments }}{% endfor %}{% endfor %}"
          "{% for t in tools %}{{ t|tojson }}{% endfor %}")
          .value());
  const RequestLimits limits{
      .vocab_size = 1'000'000, .max_model_len = 1 << 24, .max_choices = 256, .max_eos_tokens = 1};
  MemoryBudget budget(size_t{1} << 30);
  MemoryClaim claim(budget);
  claim.SetLimit(limit);
  EXPECT_TRUE(claim.Grow(text.size()).ok());
  Read read;
  try {
    JsonBody body;
    read.error = JsonBody::Parse(text, {.memory = &claim}, &body);
    if (read.error) return read;
    if (route == "completions") {
      CompletionRequest request;
      read.error = ParseCompletion(body.object(), limits, &request);
    } else if (route == "json") {
      const Status rendered = form.Render(body.Take(), {}, {.memory = &claim}).status();
      if (!rendered.ok()) read.error = ApiError{.status = 413, .message = rendered.message()};
    } else {
      ChatRequest chat(body.storage());
      ResponsesRequest response(body.storage());
      if (route == "chat") read.error = ParseChat(body.Take(), limits, &chat);
      if (route == "messages") read.error = ParseMessages(body.Take(), limits, true, &chat);
      if (route == "responses") {
        boost::json::array messages(body.object().storage());
        if (!earlier.empty()) {
          messages = EarlierMessages(earlier, text.size(), {.memory = &claim}, messages.storage());
        }
        read.error = ParseResponses(body.Take(), limits, std::move(messages), &response);
        chat.prompt = std::move(response.chat.prompt);
      }
      if (read.error) return read;
      boost::json::object variables(body.storage());
      variables["messages"] = std::move(chat.prompt.messages);
      variables["tools"] = std::move(chat.prompt.tools);
      const Status rendered = form.Render(std::move(variables), {}, {.memory = &claim}).status();
      if (!rendered.ok()) read.error = ApiError{.status = 413, .message = rendered.message()};
    }
  } catch (const std::bad_alloc&) {
    read.error = MemoryError({.memory = &claim});
  }
  read.peak = claim.peak();
  return read;
}

constexpr size_t kIds = 2'000'000;
constexpr size_t kSizes[] = {1 << 10, 16 << 10, 64 << 10, 256 << 10, kMiB, 6 * kMiB, 16 * kMiB};

// `head`, `bytes` of `piece`, of which there are `most`, and `tail`: where '$' stands each has a
// text of its own, of 40 characters or as many as it takes, and where '#' stands a number.
std::string Body(const std::string& head, const std::string& piece, const std::string& tail,
                 size_t bytes, size_t most = 1'000'000'000) {
  const bool has_text = piece.find('$') != piece.npos;
  const size_t least = piece.size() + (has_text ? 39 : 0);
  const size_t count = std::clamp<size_t>(bytes / least, 1, most);
  std::string text = head;
  for (size_t i = 0; i < count; ++i) {
    std::string one = piece;
    if (has_text) {
      std::string own = std::to_string(i) + " ";
      own.resize(std::max<size_t>(40, bytes / count - piece.size()), 'x');
      one.replace(one.find('$'), 1, own);
    }
    for (size_t at = 0; (at = one.find('#')) != one.npos;) {
      one.replace(at, 1, std::to_string(10'000 + i));
    }
    text += one;
  }
  text.pop_back();
  return text + tail;
}

struct Form {
  const char *name, *route, *head, *piece, *tail;
  size_t most;   // pieces
  double times;  // its size, that a body takes beside the allowance
};

// A client may only hold so much of the memory; what it sends in earnest must do with that, at any
// size.
void ExpectRead(std::initializer_list<Form> forms) {
  for (const Form& form : forms) {
    for (const size_t bytes : kSizes) {
      const std::string text = Body(form.head, form.piece, form.tail, bytes, form.most);
      const auto limit = static_cast<size_t>(form.times * static_cast<double>(text.size()));
      const Read read = ReadAll(form.route, text, MemoryBudget::kSmallBytes + limit);
      ASSERT_FALSE(read.error) << form.name << ' ' << bytes << ": " << read.error->message;
    }
  }
}

TEST(DenseJson, OrdinaryBodiesTakeLittle) {
  const std::string prompt = "[" + Repeated("12345,", 12'000) + "],";
  ExpectRead({
      {"chat", "chat", R"({"messages": [)", R"({"role":"user","content":"$"},)", "]}", 16384, 6},
      {"parts", "chat", R"({"messages": [)",
       R"({"role": "user", "content": [{"type": "text", "text": "$"}]},)", "]}", 16384, 5},
      {"short turns", "chat", R"({"messages": [)", R"({"role":"user","content":"x"},)", "]}", 16384,
       7.5},
      {"4 digits", "completions", R"({"prompt": [)", "1234,", "]}", kIds, 6},
      {"5 digits", "completions", R"({"prompt": [)", "12345,", "]}", kIds, 5.2},
      {"6 digits", "completions", R"({"prompt": [)", "123456,", "]}", kIds, 4.6},
      {"prompts", "completions", R"({"prompt": [[1],)", prompt.c_str(), "]}", 255, 6},
      {"biased", "completions", R"({"prompt": "x", "logit_bias": {)", R"("#": -100,)", "}}", 300,
       8},
      {"responses", "responses", R"({"input": [)", R"({"role":"user","content":"$"},)", "]}", 16384,
       6},
      {"items", "responses", R"({"input": [)",
       R"({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "$"}]},)",
       "]}", 16384, 5},
      {"talk", "messages", R"({"max_tokens": 1, "messages": [)",
       R"({"role":"user","content":"x"},{"role":"assistant","content":"y"},)", "]}", 8000, 7.8},
      {"messages", "messages", R"({"max_tokens": 1, "messages": [)",
       R"({"role":"user","content":"$"},)", "]}", 16384, 6},
      {"blocks", "messages", R"({"max_tokens": 1, "messages": [)",
       R"({"role": "user", "content": [{"type": "text", "text": "$"}]},)", "]}", 16384, 5},
      {"text", "chat", R"({"messages": [)", R"({"role":"user","content":"$"},)", "]}", 1, 3.5},
      {"escaped text", "chat", R"({"messages": [)", R"({"role":"user","content":"\n$"},)", "]}", 1,
       3.5},
  });
}

// The APIs beside chat's copied them before any was freed.
TEST(DenseJson, CallsOfToolsTakeLittle) {
  ExpectRead({
      {"calls", "chat", R"({"messages": [{"role": "user", "content": "x"},)",
       R"({"role": "assistant", "content": null, "tool_calls": [{"id": "call_#abcdefghijkl", )"
       R"("type": "function", "function": {"name": "weather", )"
       R"("arguments": "{\"city\": \"Paris\", \"unit\": \"celsius\"}"}}]},)"
       R"({"role": "tool", "tool_call_id": "call_#abcdefghijkl", "content": "$"},)",
       "]}", 8191, 5.5},
      {"called items", "responses", R"({"input": [)",
       R"({"type": "function_call", "call_id": "call_#abcdefghijkl", "name": "weather", )"
       R"("arguments": "{\"city\": \"Paris\", \"unit\": \"celsius\"}"},)"
       R"({"type": "function_call_output", "call_id": "call_#abcdefghijkl", "output": "$"},)",
       "]}", 8191, 6.5},
      {"called blocks", "messages", R"({"max_tokens": 1, "messages": [)",
       R"({"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_#abcdefghijkl", )"
       R"("name": "weather", "input": {"city": "Paris", "unit": "celsius"}}]},)"
       R"({"role": "user", "content": [{"type": "tool_result", )"
       R"("tool_use_id": "toolu_#abcdefghijkl", "content": "$"}]},)",
       "]}", 8191, 5.5},
      {"short calls", "responses", R"({"input": [)",
       R"({"type":"function_call","call_id":"call_#abcdefghijkl","name":"f","arguments":"{}"},)",
       "]}", 16384, 7.2},
      {"short blocks", "messages",
       R"({"max_tokens": 1, "messages": [{"role": "assistant", )"
       R"("content": [)",
       R"({"type":"tool_use","id":"toolu_#abcdefghijkl","name":"weather","input":{"city":"Paris"}},)",
       R"(]},{"role":"user","content":"x"}]})", 16384, 8},
      {"numbers", "messages",
       R"({"max_tokens": 1, "messages": [{"role": "assistant", )"
       R"("content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"a": [)",
       "12345,", R"(]}}]}, {"role": "user", "content": "x"}]})", kIds, 5.2},
  });
}

TEST(DenseJson, ToolsTakeLittle) {
  std::string typed = R"({"type":"object","properties":{)";
  for (const char* name : {"city", "country", "arrival", "nights", "guests", "currency"}) {
    typed += fmt::format(R"("{}":{{"type":"string"}},)", name);
  }
  typed.back() = '}';
  typed += "}";
  const std::string chat_tool =
                        R"({"type":"function","function":{"name":"look_up_#","parameters":)" +
                        typed + "}},",
                    messages_tool = R"({"name":"look_up_#","input_schema":)" + typed + "},",
                    responses_tool =
                        R"({"type":"function","name":"look_up_#","parameters":)" + typed + "},";
  ExpectRead({
      {"tools", "chat", R"({"messages": [{"role": "user", "content": "x"}], "tools": [)",
       R"({"type": "function", "function": {"name": "look_up", "description": "$", )"
       R"("parameters": {"type": "object", "properties": {"word": {"type": "string", )"
       R"("description": "The word."}, "limit": {"type": "integer"}}, "required": ["word"]}}},)",
       "]}", 1024, 5},
      {"typed tools", "chat", R"({"messages": [{"role": "user", "content": "x"}], "tools": [)",
       chat_tool.c_str(), "]}", 1024, 8},
      {"typed tools of messages", "messages",
       R"({"max_tokens": 1, "messages": )"
       R"([{"role": "user", "content": "x"}], "tools": [)",
       messages_tool.c_str(), "]}", 1024, 8},
      {"typed tools of responses", "responses", R"({"input": "x", "tools": [)",
       responses_tool.c_str(), "]}", 1024, 8},
  });
}

// It was refused for what was stored: its limit was that of the new body alone.
TEST(DenseJson, WhatGoesOnMayTakeWhatTheConversationTakes) {
  const std::string turn = R"({"role":"user","content":"x"},{"role":"assistant","content":"y"},)";
  for (const std::string& earlier :
       {"[" + Repeated(turn, 300 * turn.size()) + "]", "[" + Repeated(turn, 100'000) + "]",
        R"([{"role":"user","content":")" + std::string(130'000, 'x') + "\"}]",
        R"([{"role":"user","content":"\n)" + std::string(20 * kMiB, 'x') + "\"}]"}) {
    const std::string text = R"({"input": "And?"})";
    const Read read = ReadAll("responses", text, MaxRequestMemory(text.size()), earlier);
    ASSERT_FALSE(read.error) << earlier.size() << ": " << read.error->message;
    EXPECT_GT(read.peak, 2 * earlier.size()) << "not counted";
    EXPECT_LE(read.peak, MaxRequestMemory(text.size() + earlier.size()));
  }
}

// Room was made for as many members as there are commas.
TEST(DenseJson, WhatIsNoJsonIsToldWhereAndTakesNothing) {
  for (const auto& [before, byte] :
       {std::pair(R"({"messages":[)", 13), std::pair(R"({"messages":[1)", 15), std::pair("{", 1),
        std::pair(R"({"a":{"b":1)", 12), std::pair(R"({"a":[[])", 9)}) {
    const std::string text = before + std::string(50'000, ',');
    const Read read = ReadAll("json", text, MaxRequestMemory(text.size()));
    ASSERT_TRUE(read.error) << before;
    EXPECT_EQ(read.error->status, 400) << before;
    EXPECT_TRUE(read.error->message.ends_with(fmt::format(" at byte {}", byte)))
        << before << ": " << read.error->message;
    EXPECT_LT(read.peak, 4 * text.size()) << before;
  }
}

// What would take more is refused, and told why.
TEST(DenseJson, DenseBodiesAreRefused) {
  for (const char* piece : {"{},", "[],", "1,", "\"\",", "[1],", "{\"a\":1},", "{\"a\":{}},"}) {
    for (const size_t bytes : kSizes) {
      const std::string text = Body("{\"a\":[", piece, "]}", bytes);
      const Read read = ReadAll("json", text, MaxRequestMemory(text.size()));
      if (bytes <= 1 << 10) {
        EXPECT_FALSE(read.error) << piece;
      } else if (bytes >= kMiB) {
        ASSERT_TRUE(read.error) << piece << ' ' << bytes;
        EXPECT_EQ(read.error->status, 413);
        EXPECT_NE(read.error->message.find("shorten it"), std::string::npos);
      }
    }
  }
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
  ASSERT_TRUE(claim.Grow(text.size()).ok());
  JsonBody body;
  ASSERT_FALSE(JsonBody::Parse(text, {.memory = &claim}, &body));
  const size_t parsed = claim.held();
  ChatRequest request(body.storage());
  ASSERT_FALSE(ParseChat(body.Take(), {.vocab_size = 10, .max_model_len = 10}, &request));
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
