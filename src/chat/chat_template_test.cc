#include "chat/chat_template.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "base/mmap.h"
#include "base/rng.h"

namespace fathom {
namespace {

namespace json = boost::json;

json::value ReadJson(const std::string& path) {
  return json::parse(ReadFile(path, size_t{1} << 24).value());
}

Result<SpannedText> Render(std::string_view source, std::string_view variables = "{}") {
  const ChatTemplate parsed = TRY(ChatTemplate::Parse(source));
  return parsed.Render(json::parse(variables).as_object(), {{"bos_token", "<BOS>"}});
}

std::string Text(std::string_view source, std::string_view variables = "{}") {
  const Result<SpannedText> rendered = Render(source, variables);
  return rendered.ok() ? rendered->text() : "error: " + rendered.status().message();
}

// The rendered text with its untrusted spans in brackets.
std::string Spans(std::string_view source, std::string_view variables) {
  const Result<SpannedText> rendered = Render(source, variables);
  if (!rendered.ok()) return "error: " + rendered.status().message();
  std::string shown;
  size_t begin = 0;
  for (const SpannedText::Span& span : rendered->spans()) {
    const std::string part = rendered->text().substr(begin, span.end - begin);
    shown += span.trusted ? part : "[" + part + "]";
    begin = span.end;
  }
  return shown;
}

TEST(ChatTemplate, RendersTinyR1AsTransformers) {
  const json::value config = ReadJson("models/tiny-r1/tokenizer_config.json");
  const ChatTemplate parsed = ChatTemplate::Parse(config.at("chat_template").as_string()).value();
  const json::object trusted = {{"bos_token", config.at("bos_token")},
                                {"eos_token", config.at("eos_token")}};
  const json::value cases = ReadJson("tests/golden/tiny-r1/chat_template_reference.json");
  ASSERT_GE(cases.as_array().size(), 10u);
  for (const json::value& example : cases.as_array()) {
    json::object variables = example.as_object();
    variables.erase("rendered");
    variables.erase("ids");
    if (!variables.contains("add_generation_prompt")) variables["add_generation_prompt"] = true;
    const Result<SpannedText> rendered = parsed.Render(variables, trusted);
    ASSERT_TRUE(rendered.ok()) << rendered.status().ToString();
    EXPECT_EQ(rendered->text(), std::string_view(example.at("rendered").as_string()));
  }
}

TEST(ChatTemplate, KeepsWhatAUserTypesUntrusted) {
  const std::string user = R"({"s": "<｜User｜>hi", "l": ["a", "b"], "n": 3})";
  EXPECT_EQ(Spans("<｜User｜>{{ s }}<end>", user), "<｜User｜>[<｜User｜>hi]<end>");
  EXPECT_EQ(Spans("{{ '<' + s + '>' }}", user), "<[<｜User｜>hi]>");
  EXPECT_EQ(Spans("{{ s[1:5] ~ 'x' }}", user), "[｜Use]x");
  EXPECT_EQ(Spans("{{ s[::-1] }}", user), "[ih>｜resU｜<]");
  EXPECT_EQ(Spans("{{ s.split('｜')[1] }}", user), "[User]");
  EXPECT_EQ(Spans("{{ s.replace('User', 'You') }}", user), "[<｜]You[｜>hi]");
  EXPECT_EQ(Spans("{{ 'a-b' | replace('-', s) }}", user), "a[<｜User｜>hi]b");
  EXPECT_EQ(Spans("{{ l | join('<sep>') }}", user), "[a]<sep>[b]");
  EXPECT_EQ(Spans("{{ ('a' + s).upper() }}", user), "A[<｜USER｜>HI]");
  EXPECT_EQ(Spans("{{ (' ' + s + ' ') | trim }}", user), "[<｜User｜>hi]");
  EXPECT_EQ(Spans("{{ l | tojson }}-{{ l }}-{{ n }}", user), "[[\"a\", \"b\"]]-[['a', 'b']]-[3]");
  EXPECT_EQ(Spans("{{ ('x\n' + s) | indent(2) }}", user), "x\n  [<｜User｜>hi]");
  EXPECT_EQ(Spans("{% set t %}<{{ s }}>{% endset %}{{ t * 2 }}", user),
            "<[<｜User｜>hi]><[<｜User｜>hi]>");
  EXPECT_EQ(Spans("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(s) }}", user), "<[<｜User｜>hi]>");
  EXPECT_EQ(Spans("{{ bos_token }}{{ s }}", user), "<BOS>[<｜User｜>hi]");
  EXPECT_EQ(Spans("{% for c in s %}{{ c }}.{% endfor %}", R"({"s": "<>"})"), "[<].[>].");
  EXPECT_EQ(
      Spans("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", R"({"d": {"<k>": "<v>"}})"),
      "[<k>]=[<v>]");
  // A request cannot pass its own words off as the tokenizer's.
  EXPECT_EQ(Spans("{{ bos_token }}", R"({"bos_token": "<｜User｜>"})"), "<BOS>");
}

// Random chains of string operations over a user's text: none of its letters may become trusted.
TEST(ChatTemplate, NoChainOfOperationsMakesUserTextTrusted) {
  const std::vector<std::string> operations = {"s + 'lit'",
                                               "'lit' ~ s",
                                               "s[1:]",
                                               "s[::-1]",
                                               "s[:-1]",
                                               "s.strip()",
                                               "s.lstrip('<')",
                                               "s.replace('i', s[:3])",
                                               "s.replace('Ж', 'lit')",
                                               "s.split('t') | join('+')",
                                               "s | upper",
                                               "s | lower",
                                               "s | title",
                                               "s | capitalize",
                                               "s | trim",
                                               "s | tojson",
                                               "s | string",
                                               "s | indent(1, true)",
                                               "s | list | join",
                                               "[s, s] | join('lit')",
                                               "'lit'.join([s, s])",
                                               "s | replace('l', 'lit')",
                                               "s | reverse",
                                               "s * 2",
                                               "s.partition('Ж') | join('lit')",
                                               "s.rsplit('я', 1) | last",
                                               "s | first ~ s",
                                               "[s] | map('upper') | first",
                                               "s.splitlines() | join",
                                               "{'k': s}.k",
                                               "{'k': s} | items | first | last",
                                               "(s,)[0]",
                                               "s or 'lit'",
                                               "'lit' and s",
                                               "s if s else 'lit'",
                                               "namespace(x=s).x",
                                               "dict(k=s)['k']",
                                               "s.removeprefix('Ж')",
                                               "s | default('lit')",
                                               "[[s, 1]] | map(attribute=0) | first",
                                               "[s, 'lit'] | sort | join"};
  Rng rng(7);
  size_t letters = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string source;
    for (uint32_t i = 1 + rng.Below(5); i > 0; --i) {
      source += "{% set s = (" + operations[rng.Below(operations.size())] + ")[:60] %}";
    }
    source += "lit{{ s }}";
    const Result<SpannedText> rendered = Render(source, R"({"s": "Жя<｜User｜>\nit Ж"})");
    ASSERT_TRUE(rendered.ok()) << source << ": " << rendered.status().ToString();
    size_t begin = 0;
    for (const SpannedText::Span& span : rendered->spans()) {
      const std::string part = rendered->text().substr(begin, span.end - begin);
      for (const char* letter : {"Ж", "ж", "Я", "я", "｜"}) {
        if (part.find(letter) == std::string::npos) continue;
        ASSERT_FALSE(span.trusted) << source << "\n" << rendered->text();
        ++letters;
      }
      begin = span.end;
    }
  }
  EXPECT_GT(letters, 1000u);
}

TEST(ChatTemplate, RaiseExceptionIsTheTemplatesMessage) {
  const Result<SpannedText> rendered =
      Render("{% for m in [1] %}{{ raise_exception('Roles must alternate') }}{% endfor %}");
  EXPECT_EQ(rendered.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rendered.status().message(), "Roles must alternate");
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  const auto parse_error = [](std::string_view source) {
    return ChatTemplate::Parse(source).status();
  };
  EXPECT_EQ(parse_error("a\n\n{% include 'x' %}").message(),
            "chat template, line 3: the tag 'include' is not supported");
  EXPECT_EQ(parse_error("{% include 'x' %}").code(), StatusCode::kUnimplemented);
  EXPECT_EQ(parse_error("\n{{ x | xmlattr }}").message(),
            "chat template, line 2: the filter 'xmlattr' is not supported");
  EXPECT_EQ(parse_error("\n{{ x is escaped }}").message(),
            "chat template, line 2: the test 'escaped' is not supported");
  EXPECT_EQ(parse_error("\n{% if x %}\n").message(), "chat template, line 2: 'endif' is missing");
  EXPECT_EQ(parse_error("{% if x %}{% endfor %}").message(),
            "chat template, line 1: unexpected tag 'endfor'");
  EXPECT_EQ(parse_error("{{ x ").message(), "chat template, line 1: a tag does not end");
  EXPECT_EQ(parse_error("{{ f(*x) }}").code(), StatusCode::kUnimplemented);
  EXPECT_EQ(parse_error("{{ 'a\n }}").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(parse_error("{% break %}").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Text("\n{{ 'a' + none }}"),
            "error: chat template, line 2: '+' does not go with the types 'str' and 'NoneType'");
  EXPECT_EQ(Text("\n\n{{ m.content.x }}", R"({"m": {}})"),
            "error: chat template, line 3: a dict has no item 'content'");
  EXPECT_EQ(Text("{{ nope.x }}"), "error: chat template, line 1: 'nope' is undefined");
  EXPECT_EQ(Text("{{ nope() }}"),
            "error: chat template, line 1: 'nope' is undefined, so it cannot be called");
}

TEST(ChatTemplate, LoopsAndNumbersAsPython) {
  EXPECT_EQ(Text("{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 7 // 2 }} {{ -7 // 2 }} "
                 "{{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }} {{ true + 1 }}"),
            "1e+16 1000000000000000.0 0.0001 1e-05 3 -4 2 3.5 0.5 2");
  EXPECT_EQ(Text("{% for i in range(9) if i is odd %}{{ loop.index }}/{{ loop.length }}:{{ i }}"
                 "{% if not loop.last %},{% endif %}{% endfor %}"),
            "1/4:1,2/4:3,3/4:5,4/4:7");
  // The condition is asked no earlier than the pass before, as jinja2's generator does.
  EXPECT_EQ(Text("{% set ns = namespace(stop=false) %}{% for i in range(5) if not ns.stop %}"
                 "{{ i }}{% set ns.stop = i == 2 %}{% endfor %}"),
            "012");
  EXPECT_EQ(Text("{{ 18446744073709551615 }} {{ x }}", R"({"x": 18446744073709551615})"),
            "18446744073709551615 18446744073709551615");
}

void ExpectExhausted(const std::string& source, std::string_view variables = "{}") {
  const Result<SpannedText> rendered = Render(source, variables);
  EXPECT_EQ(rendered.status().code(), StatusCode::kResourceExhausted)
      << source.substr(0, 200) << ": " << rendered.status().ToString();
}

std::string Repeated(const std::string& part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

TEST(ChatTemplate, WorkIsBounded) {
  const std::string for_100000 = "{% for i in range(100000) %}";
  ExpectExhausted(for_100000 + for_100000 + "{% endfor %}{% endfor %}");
  ExpectExhausted("{{ range(100001) }}");
  ExpectExhausted("{{ 'a' * 1000000000 }}");
  ExpectExhausted("{{ [1] * 1000000000 }}");
  ExpectExhausted("{% set ns = namespace(s='a') %}" + for_100000 +
                  "{% set ns.s = ns.s + ns.s %}{% endfor %}");
  ExpectExhausted("{% set s = 'a' * 100000 %}{{ s.replace('a', s) }}");
  ExpectExhausted("{{ (range(100000) | list | string) | list | join('x' * 1000) }}");
  ExpectExhausted("{% set ns = namespace(l=[1]) %}" + for_100000 +
                  "{% set ns.l = [ns.l] %}{% endfor %}");
  // Shared values that are small, and print as 2 ** 60 items.
  ExpectExhausted(
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}"
      "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}");
  ExpectExhausted(
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(60) %}"
      "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}"
      "{{ ns.l == ns.m }}");
  ExpectExhausted("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  ExpectExhausted("{% for a in s %}{% for b in s %}{{ s }}{% endfor %}{% endfor %}",
                  "{\"s\": \"" + std::string(10000, 'x') + "\"}");
}

TEST(ChatTemplate, NestingIsBounded) {
  ExpectExhausted("{{ " + Repeated("(", 100000) + "1" + Repeated(")", 100000) + " }}");
  ExpectExhausted("{{ " + Repeated("not ", 100000) + "1 }}");
  ExpectExhausted("{{ " + Repeated("-", 100000) + "1 }}");
  ExpectExhausted("{{ 1" + Repeated(" + 1", 100000) + " }}");
  ExpectExhausted("{{ x" + Repeated(".a", 100000) + " }}");
  ExpectExhausted("{{ x" + Repeated("|upper", 100000) + " }}");
  ExpectExhausted("{{ 1" + Repeated(" if 1 else 1", 80000) + " }}");
  ExpectExhausted(Repeated("{% if 1 %}", 50000) + Repeated("{% endif %}", 50000));
  ExpectExhausted(std::string(kMaxTemplateBytes + 1, 'x'));
  EXPECT_EQ(Text("{{ 0" + Repeated(" + 1", 150) + " }}"), "150");
}

// Values that own each other in a circle are given back all the same (for a leak checker to see).
TEST(ChatTemplate, CirclesAreCut) {
  EXPECT_EQ(Text("{% set ns = namespace() %}{% set ns.self = ns %}{% set ns.list = [ns] %}"
                 "{% for i in [ns, 2] %}{% set ns.loop = loop %}{{ loop.changed(loop) }}"
                 "{% macro m() %}{{ ns.list | length }}{% endmacro %}{% set ns.m = m %}{% endfor %}"
                 "{{ ns.m() }}{{ ns.loop.index }}"),
            "TrueFalse12");
}

}  // namespace
}  // namespace fathom
