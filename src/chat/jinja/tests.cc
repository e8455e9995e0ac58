// jinja2's tests: what `is` and select() know.
#include <algorithm>

#include "chat/jinja/builtins.h"
#include "chat/jinja/text.h"

namespace fathom::jinja {
namespace {

enum class Kind {
  kDefined,
  kUndefined,
  kNone,
  kBoolean,
  kTrue,
  kFalse,
  kInteger,
  kFloat,
  kNumber,
  kString,
  kMapping,
  kSequence,
  kIterable,
  kCallable,
};

template <Kind kind>
Result<bool> IsKind(const Value& value, const Arguments& arguments, Budget&) {
  TRY(Bind(arguments, {}));
  const bool* flag = value.As<bool>();
  const bool container = value.AsText() != nullptr || value.AsList() != nullptr ||
                         value.AsDict() != nullptr || value.IsUndefined();
  double number = 0;
  switch (kind) {
    case Kind::kDefined: return !value.IsUndefined();
    case Kind::kUndefined: return value.IsUndefined();
    case Kind::kNone: return value.IsNone();
    case Kind::kBoolean: return flag != nullptr;
    case Kind::kTrue: return flag != nullptr && *flag;
    case Kind::kFalse: return flag != nullptr && !*flag;
    case Kind::kInteger: return value.As<Integer>() != nullptr;
    case Kind::kFloat: return value.As<double>() != nullptr;
    case Kind::kNumber: return value.AsNumber(number);
    case Kind::kString: return value.AsText() != nullptr;
    case Kind::kMapping: return value.AsDict() != nullptr;
    case Kind::kSequence:
    case Kind::kIterable: return container;
    case Kind::kCallable:
      return value.As<std::shared_ptr<const Macro>>() != nullptr ||
             value.As<std::shared_ptr<const Method>>() != nullptr ||
             value.As<Function>() != nullptr || value.IsUndefined();
  }
}

template <Class of>
Result<bool> IsClass(const Value& value, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  const Text text = TRY(Str(value, budget));
  TRY(budget.SpendText(*text));
  return IsAll(text->text(), of);
}

// "==", "!=", "<", "<=", ">", ">=", "in".
struct Operator {
  char name[3];
};
template <Operator op>
Result<bool> Relates(const Value& value, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"other"}));
  if (!bound[0]) return InvalidArgument("the test needs an argument");
  return Compare(op.name, value, *bound[0], budget);
}

// The remainder by a number: of the argument, or of 2.
Result<bool> HasRemainder(const Value& value, const Value& divisor, Int remainder, Budget& budget) {
  return Equal(TRY(Binary("%", value, divisor, budget)), Value(remainder), budget);
}
template <int remainder>
Result<bool> IsParity(const Value& value, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  return HasRemainder(value, Value(Int{2}), remainder, budget);
}
Result<bool> IsDivisible(const Value& value, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"num"}));
  return HasRemainder(value, bound[0].value_or(Value()), 0, budget);
}

// Python's `is`, for the values where it means something: none, booleans, the same object.
Result<bool> IsSame(const Value& value, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"other"}));
  const Value other = bound[0].value_or(Value());
  if (value.data().index() != other.data().index()) return false;
  if (const List* list = value.AsList()) return list == other.AsList();
  if (const Dict* dict = value.AsDict()) return dict == other.AsDict();
  return Equal(value, other, budget);
}

Result<bool> IsFilter(const Value& value, const Arguments& arguments, Budget&) {
  TRY(Bind(arguments, {}));
  return FindFilter(TRY(AsString(value, "the filter's name"))->text()) != nullptr;
}

Result<bool> IsTest(const Value& value, const Arguments& arguments, Budget&) {
  TRY(Bind(arguments, {}));
  return FindTest(TRY(AsString(value, "the test's name"))->text()) != nullptr;
}

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"!=", Relates<Operator{"!="}>},
    {"<", Relates<Operator{"<"}>},
    {"<=", Relates<Operator{"<="}>},
    {"==", Relates<Operator{"=="}>},
    {">", Relates<Operator{">"}>},
    {">=", Relates<Operator{">="}>},
    {"boolean", IsKind<Kind::kBoolean>},
    {"callable", IsKind<Kind::kCallable>},
    {"defined", IsKind<Kind::kDefined>},
    {"divisibleby", IsDivisible},
    {"eq", Relates<Operator{"=="}>},
    {"equalto", Relates<Operator{"=="}>},
    {"even", IsParity<0>},
    {"false", IsKind<Kind::kFalse>},
    {"filter", IsFilter},
    {"float", IsKind<Kind::kFloat>},
    {"ge", Relates<Operator{">="}>},
    {"greaterthan", Relates<Operator{">"}>},
    {"gt", Relates<Operator{">"}>},
    {"in", Relates<Operator{"in"}>},
    {"integer", IsKind<Kind::kInteger>},
    {"iterable", IsKind<Kind::kIterable>},
    {"le", Relates<Operator{"<="}>},
    {"lessthan", Relates<Operator{"<"}>},
    {"lower", IsClass<Class::kLower>},
    {"lt", Relates<Operator{"<"}>},
    {"mapping", IsKind<Kind::kMapping>},
    {"ne", Relates<Operator{"!="}>},
    {"none", IsKind<Kind::kNone>},
    {"number", IsKind<Kind::kNumber>},
    {"odd", IsParity<1>},
    {"sameas", IsSame},
    {"sequence", IsKind<Kind::kSequence>},
    {"string", IsKind<Kind::kString>},
    {"test", IsTest},
    {"true", IsKind<Kind::kTrue>},
    {"undefined", IsKind<Kind::kUndefined>},
    {"upper", IsClass<Class::kUpper>},
};

}  // namespace

Test FindTest(std::string_view name) {
  for (const auto& [known, test] : kTests) {
    if (known == name) return test;
  }
  return nullptr;
}

}  // namespace fathom::jinja
