// Tool calls in the forms of the published models, whole and however their text is cut.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "chat/output_parser.h"

namespace fathom {
namespace {

const std::string kBegin = "<｜tool▁calls▁begin｜>", kEnd = "<｜tool▁calls▁end｜>";
const std::string kCall = "<｜tool▁call▁begin｜>", kCallEnd = "<｜tool▁call▁end｜>";
const std::string kSep = "<｜tool▁sep｜>";

struct Call {
  std::string id, name, arguments;
  bool operator==(const Call&) const = default;
};

struct Whole {
  std::string reasoning, content;
  std::vector<Call> calls;
  bool operator==(const Whole&) const = default;
};

void PrintTo(const Whole& whole, std::ostream* out) {
  *out << "reasoning [" << whole.reasoning << "] content [" << whole.content << "]";
  for (const Call& call : whole.calls) *out << " " << call.name << "(" << call.arguments << ")";
}

void Add(const ChatDelta& delta, Whole* whole) {
  whole->reasoning += delta.reasoning;
  whole->content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    const size_t index = static_cast<size_t>(call.index);
    if (index == whole->calls.size()) {
      EXPECT_FALSE(call.id.empty() || call.name.empty()) << "a call without a beginning";
      whole->calls.push_back({call.id, call.name, {}});
    } else {
      ASSERT_EQ(index + 1, whole->calls.size()) << "a finished call goes on";
      EXPECT_TRUE(call.id.empty() && call.name.empty()) << "a call begins twice";
      EXPECT_FALSE(call.arguments.empty()) << "a delta of nothing";
    }
    whole->calls[index].arguments += call.arguments;
  }
}

Whole Parse(ToolCallForm form, const std::vector<std::string_view>& pieces,
            bool starts_in_reasoning = false) {
  OutputParser parser({.starts_in_reasoning = starts_in_reasoning,
                       .parse_tools = true,
                       .tool_call_form = form,
                       .tool_call_id_seed = 11});
  Whole whole;
  for (const std::string_view piece : pieces) Add(parser.Push(piece), &whole);
  Add(parser.Finish(), &whole);
  EXPECT_EQ(parser.saw_tool_calls(), !whole.calls.empty());
  return whole;
}

std::string Fenced(const std::string& name, const std::string& arguments) {
  return kCall + "function" + kSep + name + "\n```json\n" + arguments + "\n```" + kCallEnd;
}

std::string NameFirst(const std::string& name, const std::string& arguments) {
  return kCall + name + kSep + arguments + kCallEnd;
}

struct Sample {
  const char* what;
  ToolCallForm form;
  bool starts_in_reasoning;
  std::string text;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
};

const std::string kOslo = R"({"city": "Oslo"})", kRome = R"({"city": "R\u00f6me", "n": [1, 2]})";

std::vector<Sample> FencedSamples() {
  const ToolCallForm fenced = ToolCallForm::kFenced;
  const std::string code = R"({"code": "```python\nx = '```'\n```"})";
  const std::string pretty = "{\n  \"city\": \"Oslo\"\n}";
  return {
      {"V3: one call",
       fenced,
       false,
       kBegin + Fenced("get_weather", kOslo) + kEnd,
       "",
       {{"get_weather", kOslo}}},
      {"V3-0324: text before, two calls, a line break between",
       fenced,
       false,
       "Let me see.\n\n" + kBegin + Fenced("get_weather", kOslo) + "\n" + Fenced("f", kRome) + kEnd,
       "Let me see.\n\n",
       {{"get_weather", kOslo}, {"f", kRome}}},
      {"R1-0528: after thinking",
       fenced,
       true,
       "I call it.\n</think>\n\n" + kBegin + Fenced("get_weather", pretty) + kEnd,
       "\n\n",
       {{"get_weather", pretty}}},
      {"V3: fences and angle brackets in the arguments",
       fenced,
       false,
       kBegin + Fenced("run", code) + Fenced("f", R"({"a": "<b> <｜tool▁x ` ``"})") + kEnd,
       "",
       {{"run", code}, {"f", R"({"a": "<b> <｜tool▁x ` ``"})"}}},
      {"V3: blank around the fence",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + "f \n\n```json  \n{}\n\n```\n " + kCallEnd + "\n" +
           kEnd + "\n",
       "",
       {{"f", "{}"}}},
      {"V3: no line break before the fence, none after it",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + "f```json{\"a\": 1}```" + kCallEnd + kEnd,
       "",
       {{"f", "{\"a\": 1}"}}},
  };
}

std::vector<Sample> OddFencedSamples() {
  const ToolCallForm fenced = ToolCallForm::kFenced;
  return {
      {"V3: no fence",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + "f\n{\"a\": 1}" + kCallEnd + kEnd,
       "",
       {{"f", "{\"a\": 1}"}}},
      {"V3: no arguments",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + "now" + kCallEnd + kEnd,
       "",
       {{"now", ""}}},
      {"V3: cut off inside the arguments",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + "f\n```json\n{\"a\": \"` ",
       "",
       {{"f", "{\"a\": \"`"}}},
      {"V3: cut off at what may end the fence",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + "f\n```json\n{\"a\": \"``",
       "",
       {{"f", "{\"a\": \"``"}}},
      {"V3: cut off after the fence",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + "f\n```json\n{}\n```",
       "",
       {{"f", "{}"}}},
      {"V3: cut off in the name",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + "get_we",
       "",
       {}},
      {"V3: no name",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + "\n\n" + kCallEnd + kEnd,
       kCall + "function" + kSep + "\n\n" + kCallEnd,
       {}},
      {"V3: two separators",
       fenced,
       false,
       kBegin + kCall + "function" + kSep + kSep + kEnd,
       kCall + "function" + kSep + kSep,
       {}},
  };
}

std::vector<Sample> NameFirstSamples() {
  const ToolCallForm first = ToolCallForm::kNameFirst;
  return {
      {"V3.1: two calls",
       first,
       false,
       kBegin + NameFirst("get_weather", kOslo) + NameFirst("f", kRome) + kEnd,
       "",
       {{"get_weather", kOslo}, {"f", kRome}}},
      {"V3.1: a fence is part of the arguments",
       first,
       false,
       kBegin + NameFirst("f", "```json\n{}\n```") + kEnd,
       "",
       {{"f", "```json\n{}\n```"}}},
      {"V3.1: a tool that is called function",
       first,
       false,
       kBegin + NameFirst("function", "{}") + kEnd,
       "",
       {{"function", "{}"}}},
  };
}

std::vector<Sample> Samples() {
  std::vector<Sample> all;
  for (const auto& some : {FencedSamples(), OddFencedSamples(), NameFirstSamples()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

Whole Expected(const Sample& sample) {
  Whole whole = Parse(sample.form, {sample.text}, sample.starts_in_reasoning);
  EXPECT_EQ(whole.content, sample.content) << sample.what;
  std::vector<std::pair<std::string, std::string>> calls;
  for (const Call& call : whole.calls) calls.emplace_back(call.name, call.arguments);
  EXPECT_EQ(calls, sample.calls) << sample.what;
  return whole;
}

TEST(ToolCallForms, EveryCutGivesTheWhole) {
  for (const Sample& sample : Samples()) {
    const Whole whole = Expected(sample);
    const std::string_view text = sample.text;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(
          Parse(sample.form, {text.substr(0, cut), text.substr(cut)}, sample.starts_in_reasoning),
          whole)
          << sample.what << ", cut at " << cut;
    }
  }
}

TEST(ToolCallForms, EveryPairOfCutsGivesTheWhole) {
  for (const Sample& sample : Samples()) {
    const std::string_view text = sample.text;
    if (text.size() > 200) continue;
    const Whole whole = Expected(sample);
    for (size_t a = 1; a + 1 < text.size(); ++a) {
      for (size_t b = a + 1; b < text.size(); ++b) {
        ASSERT_EQ(Parse(sample.form, {text.substr(0, a), text.substr(a, b - a), text.substr(b)},
                        sample.starts_in_reasoning),
                  whole)
            << sample.what << ", cut at " << a << " and " << b;
      }
    }
  }
}

TEST(ToolCallForms, ByteByByteGivesTheWhole) {
  for (const Sample& sample : Samples()) {
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < sample.text.size(); ++i) {
      bytes.push_back(std::string_view(sample.text).substr(i, 1));
    }
    EXPECT_EQ(Parse(sample.form, bytes, sample.starts_in_reasoning), Expected(sample))
        << sample.what;
  }
}

TEST(ToolCallForms, RandomTextInAnyPieces) {
  const std::vector<std::string> atoms = {
      kCall, kCallEnd, kSep,       kEnd,       "`", "```",     "\n", " ",
      "f",   "json",   R"({"a"})", "function", "<", "<｜tool", "ä",  std::string(120, 'n')};
  Rng rng(20260101);
  int with_calls = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = kBegin + kCall + "function" + kSep + (rng.Below(2) ? "f\n```json\n" : "");
    for (uint32_t i = rng.Below(14); i > 0; --i) {
      text += atoms[rng.Below(static_cast<uint32_t>(atoms.size()))];
    }
    const ToolCallForm form = rng.Below(4) ? ToolCallForm::kFenced : ToolCallForm::kNameFirst;
    const Whole whole = Parse(form, {text});
    with_calls += !whole.calls.empty();
    std::vector<std::string_view> pieces;
    const uint32_t longest = 1 + rng.Below(12);
    for (size_t at = 0; at < text.size(); at += pieces.back().size()) {
      pieces.push_back(std::string_view(text).substr(at, 1 + rng.Below(longest)));
    }
    ASSERT_EQ(Parse(form, pieces), whole) << "round " << round << ": " << text;
  }
  EXPECT_GT(with_calls, 5'000);
}

TEST(ToolCallForms, ArgumentsStreamAsTheyCome) {
  OutputParser parser({.parse_tools = true, .tool_call_form = ToolCallForm::kFenced});
  EXPECT_TRUE(parser.Push(kBegin + kCall + "function" + kSep + "get_we").empty());
  ChatDelta delta = parser.Push("ather\n");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].name, "get_weather");
  EXPECT_EQ(delta.tool_calls[0].arguments, "");
  EXPECT_TRUE(parser.Push("```json\n").empty());
  EXPECT_EQ(parser.Push("{\"city\":").tool_calls.at(0).arguments, "{\"city\":");
  EXPECT_EQ(parser.Push(" \"Oslo\"}\n").tool_calls.at(0).arguments, " \"Oslo\"}");
  EXPECT_TRUE(parser.Push("```" + kCallEnd + kEnd).empty());
  EXPECT_TRUE(parser.Finish().empty());
}

TEST(ToolCallForms, EndlessNameAndWhitespaceAreBounded) {
  OutputParser parser({.parse_tools = true, .tool_call_form = ToolCallForm::kFenced});
  std::string content = parser.Push(kBegin + kCall + "function" + kSep).content;
  for (int i = 0; i < 1000; ++i) content += parser.Push("n").content;
  EXPECT_GT(content.size(), 700u);
  content += parser.Push(kEnd).content;
  EXPECT_EQ(content, kCall + "function" + kSep + std::string(1000, 'n'));
  parser.Push(kBegin + kCall + "function" + kSep + "f\n```json\n{");
  std::string arguments;
  for (int i = 0; i < 1000; ++i) {
    for (const ToolCallDelta& call : parser.Push("\n").tool_calls) arguments += call.arguments;
  }
  EXPECT_GT(arguments.size(), 900u);
}

}  // namespace
}  // namespace fathom
