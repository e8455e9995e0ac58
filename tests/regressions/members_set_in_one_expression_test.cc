// object["a"] = object["b"] = value; on a boost::json::object: inserting "a" may grow the object,
// and so free what object["b"] has returned. Messages of an assistant with reasoning, answers, and
// variables of a template were made so; the reasoning was read from freed memory.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "server/json_body.h"
#include "server/openai_request.h"

namespace fathom {
namespace {

TEST(MembersSetInOneExpression, ReasoningKeepsItsText) {
  const std::string reasoning(100, 'r');
  for (const char* name : {"", R"("name": "Ann", )"}) {  // a member more or less before it grows
    for (const char* key : {"reasoning", "reasoning_content"}) {
      const std::string text = std::string(R"({"messages": [{"role": "assistant", )") + name +
                               "\"" + key + R"(": ")" + reasoning +
                               R"("}], "reasoning_effort": "none"})";
      JsonBody body;
      ASSERT_FALSE(JsonBody::Parse(text, {}, &body));
      ChatRequest request;
      const RequestLimits limits{.vocab_size = 10, .max_model_len = 10};
      ASSERT_FALSE(ParseChat(body.object(), limits, &request));
      const boost::json::value& message = request.prompt.messages.at(0);
      EXPECT_EQ(message.at("reasoning"), boost::json::value(reasoning));
      EXPECT_EQ(message.at("reasoning_content"), boost::json::value(reasoning));
      const boost::json::object& variables = request.prompt.template_kwargs;
      EXPECT_EQ(variables.at("thinking"), boost::json::value(false));
      EXPECT_EQ(variables.at("enable_thinking"), boost::json::value(false));
    }
  }
}

}  // namespace
}  // namespace fathom
