#include "chat/chat_template.h"

#include <boost/json.hpp>
#include <utility>
#include <vector>

#include "chat/jinja/evaluator.h"
#include "chat/jinja/from_json.h"
#include "chat/jinja/parser.h"
#include "chat/jinja/text.h"

namespace fathom {

namespace json = boost::json;

ChatTemplate::ChatTemplate(std::shared_ptr<const jinja::Program> program)
    : program_(std::move(program)) {}

Result<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return ResourceExhausted("the chat template has {} bytes; the limit is {}", source.size(),
                             kMaxTemplateBytes);
  }
  TRY(jinja::CheckCharacterTables());
  jinja::Program program = TRY(jinja::ParseProgram(source));
  return ChatTemplate(std::make_shared<const jinja::Program>(std::move(program)));
}

Result<SpannedText> ChatTemplate::Render(json::object variables, json::object trusted_variables,
                                         const WorkLimits& limits) const {
  jinja::FromJson untrusted(limits, false), trusted(limits, true);  // outlive the evaluator
  jinja::Evaluator evaluator(limits);
  for (json::key_value_pair& entry : variables) {
    evaluator.Define(entry.key(), TRY(untrusted.Variable(entry.key(), entry.value())));
  }
  for (json::key_value_pair& entry : trusted_variables) {
    evaluator.Define(entry.key(), TRY(trusted.Variable(entry.key(), entry.value())));
  }
  return evaluator.Run(*program_);
}

}  // namespace fathom
