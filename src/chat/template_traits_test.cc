#include "chat/template_traits.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

namespace fathom {
namespace {

TemplateTraits TraitsOf(const std::string& source) {
  return FindTraits(ChatTemplate::Parse(source).value(),
                    {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}});
}

const std::string kTexts = "{% for m in messages %}{{ m['content'] or '' }}{% endfor %}";

std::string WithCalls(const std::string& call) {
  return "{% for m in messages %}{{ m['content'] or '' }}{% if m['tool_calls'] %}"
         "{% for call in m['tool_calls'] %}{{ " +
         call + " }}{% endfor %}{% endif %}{% endfor %}";
}

TEST(TemplateTraits, NeitherToolsNorCalls) {
  EXPECT_FALSE(TraitsOf(kTexts).reads_tools);
  EXPECT_FALSE(TraitsOf(kTexts).tool_call_form);
}

TEST(TemplateTraits, ReadsTools) {
  EXPECT_TRUE(TraitsOf(kTexts + "{{ tools | tojson }}").reads_tools);
  EXPECT_TRUE(TraitsOf("{% for t in tools %}{{ t['function']['name'] }}{% endfor %}").reads_tools);
  EXPECT_TRUE(TraitsOf("{% if tools %}{{ raise_exception('none') }}{% endif %}").reads_tools);
  EXPECT_FALSE(TraitsOf(kTexts + "{% if tools %}Call tools.{% endif %}").reads_tools);
}

TEST(TemplateTraits, FormOfCalls) {
  EXPECT_EQ(TraitsOf(WithCalls("call['function']['name'] + '<｜tool▁sep｜>' + "
                               "call['function']['arguments']"))
                .tool_call_form,
            ToolCallForm::kNameFirst);
  EXPECT_EQ(TraitsOf(WithCalls("call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + "
                               "'\\n```json\\n' + call['function']['arguments'] + '\\n```'"))
                .tool_call_form,
            ToolCallForm::kFenced);
  EXPECT_FALSE(TraitsOf(WithCalls("call['function']['name']")).tool_call_form);
}

// As templates for V3 and R1 have it: calls are left out, or cannot be written, unless their
// message and their arguments are what the template expects.
TEST(TemplateTraits, WhatCallsMustBeGivenAs) {
  const std::string calls =
                        "{% for call in m['tool_calls'] %}{{ call['type'] + '<｜tool▁sep｜>' + "
                        "call['function']['name'] + '\\n' + ",
                    end = " }}{% endfor %}";
  const std::string text = "call['function']['arguments']", object = text + " | tojson";
  const auto in = [](const std::string& body) {
    return TraitsOf("{% for m in messages %}{% if m['role'] == 'assistant' %}" + body +
                    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}");
  };
  TemplateTraits traits = in("{% if m['content'] is none %}" + calls + text + end + "{% endif %}");
  EXPECT_TRUE(traits.null_content);
  EXPECT_FALSE(traits.object_arguments);
  EXPECT_EQ(traits.tool_call_form, ToolCallForm::kFenced);
  traits = in("{% if '</think>' in m['content'] %}{% endif %}" + calls + object + end);
  EXPECT_FALSE(traits.null_content);
  EXPECT_TRUE(traits.object_arguments);
  EXPECT_EQ(traits.tool_call_form, ToolCallForm::kFenced);
}

}  // namespace
}  // namespace fathom
