#include "chat/chat_template.h"

#include <boost/json.hpp>
#include <utility>
#include <vector>

#include "chat/jinja/evaluator.h"
#include "chat/jinja/parser.h"
#include "chat/jinja/text.h"

namespace fathom {
namespace {

using jinja::Value;
namespace json = boost::json;

Result<Value> FromJson(const json::value& value, bool trusted, int depth);

Result<Value> FromJson(const json::object& object, bool trusted, int depth) {
  jinja::Dict dict;
  for (const json::key_value_pair& entry : object) {
    Value value = TRY(FromJson(entry.value(), trusted, depth + 1));
    TRY(dict.Set(Value::Str(entry.key(), trusted), std::move(value)));
  }
  return MakeDict(std::move(dict));
}

Result<Value> FromJson(const json::array& array, bool trusted, int depth) {
  std::vector<Value> items;
  items.reserve(array.size());
  for (const json::value& item : array) {
    items.push_back(TRY(FromJson(item, trusted, depth + 1)));
  }
  return jinja::MakeList(std::move(items));
}

Result<Value> FromJson(const json::value& value, bool trusted, int depth) {
  if (depth > jinja::kMaxValueDepth) {
    return InvalidArgument("the messages nest more than {} deep", jinja::kMaxValueDepth);
  }
  switch (value.kind()) {
    case json::kind::null: return Value(jinja::None{});
    case json::kind::bool_: return Value(value.get_bool());
    case json::kind::int64: return Value(static_cast<jinja::Int>(value.get_int64()));
    case json::kind::uint64: return Value(static_cast<jinja::Int>(value.get_uint64()));
    case json::kind::double_: return Value(value.get_double());
    case json::kind::string: return Value::Str(value.get_string(), trusted);
    case json::kind::array: return FromJson(value.get_array(), trusted, depth);
    case json::kind::object: return FromJson(value.get_object(), trusted, depth);
  }
  CHECK(false, "JSON kind {}", static_cast<int>(value.kind()));
}

}  // namespace

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

Result<SpannedText> ChatTemplate::Render(const json::object& variables,
                                         const json::object& trusted_variables) const {
  jinja::Evaluator evaluator;
  for (const bool trusted : {false, true}) {
    for (const json::key_value_pair& entry : trusted ? trusted_variables : variables) {
      evaluator.Define(entry.key(), TRY(FromJson(entry.value(), trusted, 1)));
    }
  }
  return evaluator.Run(*program_);
}

}  // namespace fathom
