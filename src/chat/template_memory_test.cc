// What a template makes of a chat is held by its request: what it writes was in no account.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "base/memory_budget.h"
#include "base/thread_bytes.h"
#include "chat/chat_template.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr size_t kMiB = size_t{1} << 20;

// Chats of one user's texts.
json::object Variables(size_t messages, size_t bytes) {
  json::array list;
  for (size_t i = 0; i < messages; ++i) {
    list.push_back(json::object{{"role", "user"}, {"content", std::string(bytes, 'x')}});
  }
  return {{"messages", std::move(list)}};
}

TEST(TemplateMemory, OfWhatIsWrittenIsClaimed) {
  for (const char* source :
       {"{% for m in messages %}{{ '<|User|>' + m.content }}{% endfor %}",
        "{% for m in messages %}{% set c = m.content.split('</think>')[-1] %}{{ c|trim }}{{ c }}"
        "{% endfor %}",
        "{% set ns = namespace(all='') %}{% for m in messages %}"
        "{% set ns.all = ns.all + m.content %}{% endfor %}{{ ns.all }}",
        "{% set ns = namespace(all=[]) %}{% for i in range(8) %}"
        "{% set ns.all = ns.all + [messages[0].content + '.'] %}{% endfor %}{{ ns.all|length }}",
        "{% macro m(n) %}{{ messages[0].content }}{% if n %}{% set x = m(n - 1) %}{% endif %}"
        "{% endmacro %}{% set y = m(8) %}",
        "{% set all %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ all }}",
        "{{ messages|tojson }}"}) {
    const ChatTemplate form = ChatTemplate::Parse(source).value();
    for (const auto& [messages, bytes] : {std::pair{1, 2 * kMiB}, {8, kMiB / 4}, {64, kMiB / 32}}) {
      MemoryBudget budget(kMiB << 10);
      MemoryClaim claim(budget);
      json::object variables = Variables(messages, bytes);
      const int64_t before = ThreadBytes();
      ThreadPeak();
      const auto text = form.Render(std::move(variables), {}, {.memory = &claim});
      const int64_t took = ThreadPeak() - before;
      ASSERT_TRUE(text.ok()) << text.status().ToString();
      EXPECT_LE(took, static_cast<int64_t>(claim.peak() + kMiB / 16)) << source << messages;
      EXPECT_EQ(claim.held(), 0u);
    }
  }
}

TEST(TemplateMemory, IsRefusedWhereThereIsNone) {
  const ChatTemplate form =
      ChatTemplate::Parse("{% for i in range(50) %}{{ messages[0].content }}{% endfor %}").value();
  MemoryBudget budget(4 * kMiB);
  MemoryClaim claim(budget);
  claim.SetLimit(kMiB);
  EXPECT_EQ(form.Render(Variables(1, kMiB / 8), {}, {.memory = &claim}).status().code(),
            StatusCode::kResourceExhausted);
  MemoryClaim other(budget);
  EXPECT_TRUE(other.Grow(kMiB).ok());
  claim.Reset();
  claim.SetLimit(kMiB);
  EXPECT_TRUE(form.Render(Variables(1, 10'000), {}, {.memory = &claim}).ok());
}

}  // namespace
}  // namespace fathom
