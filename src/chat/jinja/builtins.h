// jinja2's filters and tests, the methods of Python's types, and the functions of transformers.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja/value.h"

namespace fathom::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// One value for each parameter, nothing where the call gives none. An error for a call that does
// not fit the parameters.
using Bound = std::vector<std::optional<Value>>;
Result<Bound> Bind(const Arguments& arguments, std::initializer_list<std::string_view> parameters);

using Filter = Result<Value> (*)(const Value& input, const Arguments& arguments, Budget& budget);
using Test = Result<bool> (*)(const Value& input, const Arguments& arguments, Budget& budget);
// Null if there is none of that name.
Filter FindFilter(std::string_view name);
Filter FindListFilter(std::string_view name);  // of those that FindFilter knows
Test FindTest(std::string_view name);

// Whether a text, list or dict has a method that this subset knows.
bool HasMethod(const Value& self, std::string_view name);
Result<Value> CallMethod(const Method& method, const Arguments& arguments, Budget& budget);

// text.replace(old, new, count); separator.join(list), with str() of each item.
Result<Value> ReplaceText(const SpannedText& text, const Arguments& arguments, Budget& budget);
Result<Value> JoinText(const SpannedText& separator, const List& list, Budget& budget);

Result<Value> MakeRange(const Arguments& arguments, Budget& budget);
Result<Value> MakeDictFrom(const Arguments& arguments, Budget& budget);
// Local time, by strftime(3)'s format.
Result<Value> StrftimeNow(const Arguments& arguments);

// An argument that is off unless given.
inline bool Flag(const std::optional<Value>& argument) {
  return argument.has_value() && Truth(*argument);
}
// Arguments as what a builtin needs; errors say what was expected.
Result<Int> AsInteger(const Value& value, std::string_view what);
Result<const SpannedText*> AsString(const Value& value, std::string_view what);

}  // namespace fathom::jinja
