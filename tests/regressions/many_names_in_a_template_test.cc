// Setting a variable of a template looked through all the others: the 100,000 names that
// chat_template_kwargs may bring took half a minute, outside every budget.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <string>

#include "base/work_limits.h"
#include "chat/chat_template.h"

namespace fathom {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;  // NOLINT: of tests only

json::object ManyNames(int names) {
  json::object many;
  for (int i = 0; i < names; ++i) many["name" + std::to_string(i)] = i;
  return many;
}

TEST(ManyNamesInATemplate, TakeLinearTime) {
  const ChatTemplate parsed =
      ChatTemplate::Parse("{{ name7 }} {{ name99999 }} {{ d.name54321 }} {{ d|length }}").value();
  json::object variables = ManyNames(100'000);
  variables["d"] = ManyNames(100'000);
  const auto began = std::chrono::steady_clock::now();
  const Result<SpannedText> rendered = parsed.Render(variables, {});
  ASSERT_TRUE(rendered.ok()) << rendered.status().message();
  EXPECT_EQ(rendered->text(), "7 99999 54321 100000");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);  // 0.2 s; it was half a minute
}

TEST(ManyNamesInATemplate, EndWithWhoeverWaitsForThem) {
  const ChatTemplate parsed = ChatTemplate::Parse("{{ name7 }}").value();
  const json::object variables = ManyNames(10'000);
  Interrupt interrupt(1h);
  EXPECT_TRUE(parsed.Render(variables, {}, {.interrupt = &interrupt}).ok());
  interrupt.Raise();
  EXPECT_EQ(parsed.Render(variables, {}, {.interrupt = &interrupt}).status().code(),
            StatusCode::kCancelled);
  const Interrupt over(0s);
  EXPECT_EQ(parsed.Render(variables, {}, {.interrupt = &over}).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(ManyNamesInATemplate, LoopsEndToo) {
  const ChatTemplate parsed = ChatTemplate::Parse(
                                  "{% for i in range(100000) %}{% for j in range(90) %}{% endfor %}"
                                  "{% endfor %}")
                                  .value();
  Interrupt interrupt(1h);
  interrupt.Raise();
  EXPECT_EQ(parsed.Render({}, {}, {.interrupt = &interrupt}).status().code(),
            StatusCode::kCancelled);
}

}  // namespace
}  // namespace fathom
