#include "chat/output_parser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "base/rng.h"

namespace fathom {
namespace {

const std::string kBegin = "<｜tool▁calls▁begin｜>", kEnd = "<｜tool▁calls▁end｜>";
const std::string kCall = "<｜tool▁call▁begin｜>", kCallEnd = "<｜tool▁call▁end｜>";
const std::string kSep = "<｜tool▁sep｜>";

struct Whole {
  std::string reasoning, content;
  struct Call {
    std::string id, name, arguments;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> calls;
  bool operator==(const Whole&) const = default;
};

void Add(const ChatDelta& delta, Whole& whole) {
  whole.reasoning += delta.reasoning;
  whole.content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    const size_t index = static_cast<size_t>(call.index);
    ASSERT_LE(index, whole.calls.size());
    if (index == whole.calls.size()) {
      ASSERT_FALSE(call.id.empty());
      ASSERT_FALSE(call.name.empty());
      whole.calls.push_back({call.id, call.name, {}});
    } else {
      ASSERT_EQ(index + 1, whole.calls.size()) << "a finished call continues";
      ASSERT_TRUE(call.id.empty() && call.name.empty());
    }
    whole.calls[index].arguments += call.arguments;
  }
}

OutputParserOptions Options(bool starts_in_reasoning, bool parse_tools) {
  return {.starts_in_reasoning = starts_in_reasoning,
          .parse_reasoning = true,
          .parse_tools = parse_tools,
          .tool_call_id_seed = 7};
}

Whole Parse(const OutputParserOptions& options, const std::vector<std::string>& pieces) {
  OutputParser parser(options);
  Whole whole;
  for (const std::string& piece : pieces) Add(parser.Push(piece), whole);
  Add(parser.Finish(), whole);
  EXPECT_EQ(parser.saw_tool_calls(), !whole.calls.empty());
  return whole;
}

Whole ParseTools(const std::string& text) {
  return Parse(Options(false, true), {text});
}

TEST(OutputParser, Reasoning) {
  Whole whole = Parse(Options(true, false), {"I add.\n</think>\n\n4 < 5 </think>"});
  EXPECT_EQ(whole.reasoning, "I add.\n");
  EXPECT_EQ(whole.content, "\n\n4 < 5 </think>");

  whole = Parse(Options(false, false), {"<think>a</think>b<think>c"});
  EXPECT_EQ(whole.reasoning, "a");
  EXPECT_EQ(whole.content, "b<think>c");

  whole = Parse(Options(true, false), {"<think>\nagain"});  // the prompt has opened it already
  EXPECT_EQ(whole.reasoning, "\nagain");
  EXPECT_EQ(whole.content, "");

  whole = Parse({.starts_in_reasoning = true,
                 .parse_reasoning = false,
                 .parse_tools = false,
                 .tool_call_id_seed = {}},
                {"a</think>b"});
  EXPECT_EQ(whole.reasoning, "");
  EXPECT_EQ(whole.content, "a</think>b");
}

TEST(OutputParser, LateReasoning) {
  OutputParserOptions options = Options(false, true);
  options.may_think_late = true;
  Whole whole = Parse(options, {"First.<think>a</think>b<think>c</think>"});
  EXPECT_EQ(whole.reasoning, "a");
  EXPECT_EQ(whole.content, "First.b<think>c</think>");
  whole = Parse(options, {"First.</think>b<think>c"});
  EXPECT_EQ(whole.reasoning, "");
  EXPECT_EQ(whole.content, "First.b<think>c");
  whole =
      Parse(options, {"<think>a</think>" + kBegin + kCall + "f" + kSep + "{}" + kCallEnd + kEnd});
  EXPECT_EQ(whole.reasoning, "a");
  EXPECT_EQ(whole.calls.size(), 1u);
}

TEST(OutputParser, HoldsBackOnlyWhatMayBeAMarker) {
  OutputParser parser(Options(true, false));
  EXPECT_EQ(parser.Push("1 < 2").reasoning, "1 < 2");
  EXPECT_EQ(parser.Push("a </thi").reasoning, "a ");
  EXPECT_EQ(parser.Push("s").reasoning, "</this");
  EXPECT_TRUE(parser.Push("</think").empty());
  EXPECT_EQ(parser.Push(">b").content, "b");
  EXPECT_EQ(parser.Push("<｜tool▁calls▁beg").content, "<｜tool▁calls▁beg");  // tools are off
  EXPECT_TRUE(parser.Finish().empty());
}

TEST(OutputParser, ToolCalls) {
  const Whole whole =
      ParseTools("Let me see." + kBegin + kCall + "get_weather" + kSep + R"({"city": "Rome"})" +
                 kCallEnd + "\n" + kCall + " now \n" + kSep + "{}" + kCallEnd + kEnd + "\n");
  EXPECT_EQ(whole.content, "Let me see.");
  ASSERT_EQ(whole.calls.size(), 2u);
  EXPECT_EQ(whole.calls[0].name, "get_weather");
  EXPECT_EQ(whole.calls[0].arguments, R"({"city": "Rome"})");
  EXPECT_EQ(whole.calls[1].name, "now");
  EXPECT_EQ(whole.calls[1].arguments, "{}");
  EXPECT_EQ(whole.calls[0].id.size(), 29u);
  EXPECT_EQ(whole.calls[0].id.substr(0, 5), "call_");
  EXPECT_NE(whole.calls[0].id, whole.calls[1].id);
}

TEST(OutputParser, IdsDifferBetweenParsers) {
  const std::string text = kBegin + kCall + "f" + kSep + "{}" + kCallEnd + kEnd;
  OutputParserOptions options = Options(false, true);
  options.tool_call_id_seed.reset();
  EXPECT_NE(Parse(options, {text}).calls[0].id, Parse(options, {text}).calls[0].id);
}

TEST(OutputParser, StreamsArguments) {
  OutputParser parser(Options(false, true));
  EXPECT_TRUE(parser.Push(kBegin + kCall + "f").empty());
  ChatDelta delta = parser.Push(kSep + "{\"a");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].name, "f");
  EXPECT_EQ(delta.tool_calls[0].arguments, "{\"a");
  delta = parser.Push("\": 1");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].arguments, "\": 1");
  EXPECT_TRUE(delta.tool_calls[0].id.empty());
}

TEST(OutputParser, MalformedMarkupLosesNoText) {
  // An unterminated call keeps the arguments it has.
  Whole whole = ParseTools(kBegin + kCall + "f" + kSep + "{\"a\": <｜tool▁ca");
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_EQ(whole.calls[0].arguments, "{\"a\": <｜tool▁ca");
  // No end of the call before the next, or before the end of all.
  whole = ParseTools(kBegin + kCall + "f" + kSep + "1" + kCall + "g" + kSep + "2" + kEnd + " x");
  ASSERT_EQ(whole.calls.size(), 2u);
  EXPECT_EQ(whole.calls[0].arguments, "1");
  EXPECT_EQ(whole.calls[1].arguments, "2");
  EXPECT_EQ(whole.content, "x");
  // A call without a name or a separator is content.
  EXPECT_EQ(ParseTools(kBegin + kCall + "get" + kCallEnd + kEnd).content, kCall + "get" + kCallEnd);
  EXPECT_EQ(ParseTools(kBegin + kCall + " " + kSep + "{}" + kCallEnd).content,
            kCall + " " + kSep + "{}" + kCallEnd);
  // A call that is cut before its name is whole is none, and no content.
  whole = ParseTools(kBegin + kCall + "get");
  EXPECT_EQ(whole.content, "");
  EXPECT_TRUE(whole.calls.empty());
  // Text between and after calls: only whitespace is dropped.
  EXPECT_EQ(ParseTools(kBegin + "\n and " + kCall + "f" + kSep + kCallEnd + " \n" + kEnd + "\nz ")
                .content,
            "and z ");
}

TEST(OutputParser, EndlessNameIsBounded) {
  OutputParser parser(Options(false, true));
  parser.Push(kBegin + kCall);
  std::string content;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 1'000'000; ++i) {
    content += parser.Push("<｜to").content;
    ASSERT_LE(6 * (static_cast<size_t>(i) + 1), content.size() + 300);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  content += parser.Finish().content;
  EXPECT_EQ(content.size(), kCall.size() + 6'000'000);
}

// Random text of markers, pieces of markers and other text, cut anywhere, inside characters too.
TEST(OutputParser, AnySplitGivesTheSameWhole) {
  const std::vector<std::string> atoms = {
      "<think>", "</think>", kBegin, kEnd,          kCall,
      kCallEnd,  kSep,       "<",    "<｜",         "｜>",
      " ",       "\n",       "ä",    "get_weather", R"({"a": "<b>"})",
      "</",      "<｜tool",  "text", "\xEF\xBD"};
  Rng rng(20240601);
  int with_calls = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = rng.Below(2) ? kBegin + kCall + "f" + kSep : "";
    for (uint32_t i = rng.Below(16); i > 0; --i) {
      std::string atom = atoms[rng.Below(static_cast<uint32_t>(atoms.size()))];
      if (rng.Below(8) == 0) atom.resize(rng.Below(static_cast<uint32_t>(atom.size()) + 1));
      text += atom;
    }
    const OutputParserOptions options = Options(rng.Below(2), rng.Below(4) > 0);
    const Whole whole = Parse(options, {text});
    with_calls += !whole.calls.empty();
    std::vector<std::string> pieces;
    const uint32_t longest = 1 + rng.Below(12);
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, 1 + rng.Below(longest)));
      at += pieces.back().size();
    }
    ASSERT_EQ(Parse(options, pieces), whole) << "round " << round << ": " << text;
  }
  EXPECT_GT(with_calls, 2'000);
}

TEST(OutputParser, FirstState) {
  const auto state = [](const char* prompt, bool has_think_token = true) {
    const OutputParserOptions options = OptionsAfter(prompt, has_think_token);
    return std::string(options.starts_in_reasoning ? "inside" : "outside") +
           (options.may_think_late ? ", late" : "");
  };
  EXPECT_EQ(state("<｜User｜>Hi<｜Assistant｜><think>"), "inside");
  EXPECT_EQ(state("<｜User｜>Hi<｜Assistant｜><think>\n"), "inside");
  EXPECT_EQ(state("<｜User｜>Hi<｜Assistant｜></think>"), "outside");
  EXPECT_EQ(state("<｜User｜>What is <think>?<｜Assistant｜>"), "outside, late");
  EXPECT_EQ(state("<｜User｜>What is <think>?<｜Assistant｜>", false), "outside");
  EXPECT_EQ(state(""), "outside, late");
}

}  // namespace
}  // namespace fathom
