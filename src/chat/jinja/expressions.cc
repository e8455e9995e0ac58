// Expressions and calls.
#include <algorithm>

#include "chat/jinja/at_line.h"
#include "chat/jinja/evaluator.h"

namespace fathom::jinja {
namespace {

constexpr std::pair<std::string_view, Function> kFunctions[] = {
    {"dict", Function::kDict},
    {"namespace", Function::kNamespace},
    {"raise_exception", Function::kRaiseException},
    {"range", Function::kRange},
    {"strftime_now", Function::kStrftimeNow},
};

}  // namespace

Result<Value> Evaluator::Evaluate(const Expression& expression) {
  TRY(AtLine(expression.line, budget_.Spend(1)));
  if (expression.kind == Kind::kConstant) return expression.constant;
  if (expression.kind == Kind::kName) return Variable(expression.name);
  TRY(Enter(expression.line));
  Result<Value> value = EvaluateCompound(expression);
  Leave();
  return value;
}

Result<Value> Evaluator::EvaluateCompound(const Expression& expression) {
  switch (expression.kind) {
    case Kind::kConstant:
    case Kind::kName: break;
    case Kind::kList:
    case Kind::kTuple: return EvaluateSequence(expression);
    case Kind::kDict: return EvaluateDict(expression);
    case Kind::kAttribute:
    case Kind::kItem: return EvaluateItem(expression);
    case Kind::kSlice: return EvaluateSlice(expression);
    case Kind::kCall: return EvaluateCall(expression, nullptr);
    case Kind::kFilter:
    case Kind::kTest: return EvaluateFilter(expression);
    case Kind::kNegative:
    case Kind::kPositive:
    case Kind::kNot: return EvaluateUnary(expression);
    case Kind::kAnd:
    case Kind::kOr:
    case Kind::kBinary: return EvaluateBinary(expression);
    case Kind::kConcat: return EvaluateConcat(expression);
    case Kind::kCompare: return EvaluateCompare(expression);
    case Kind::kCondition: return EvaluateCondition(expression);
  }
  CHECK(false, "expression kind {}", static_cast<int>(expression.kind));
}

Value Evaluator::Variable(const std::string& name) const {
  if (const Value* value = scope_->Find(name)) return *value;
  for (const auto& [known, function] : kFunctions) {
    if (known == name) return Value(function);
  }
  return Value::Missing(fmt::format("'{}' is undefined", name));
}

Result<Value> Evaluator::EvaluateSequence(const Expression& expression) {
  std::vector<Value> items;
  items.reserve(expression.operands.size());
  for (const ExpressionPtr& operand : expression.operands) {
    items.push_back(TRY(Evaluate(*operand)));
  }
  return AtLine(expression.line, MakeList(std::move(items), expression.kind == Kind::kTuple));
}

Result<Value> Evaluator::EvaluateDict(const Expression& expression) {
  Dict dict;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    const Value key = TRY(Evaluate(*expression.operands[i]));
    Value value = TRY(Evaluate(*expression.operands[i + 1]));
    TRY(AtLine(expression.line, budget_.Spend(kCharacterWork)));
    TRY(AtLine(expression.line, dict.Set(key, std::move(value))));
  }
  return AtLine(expression.line, MakeDict(std::move(dict)));
}

Result<Value> Evaluator::EvaluateUnary(const Expression& expression) {
  const Value operand = TRY(Evaluate(*expression.operands[0]));
  if (expression.kind == Kind::kNot) return Value(!Truth(operand));
  Value negative = TRY(AtLine(expression.line, Negate(operand)));
  if (expression.kind == Kind::kNegative) return negative;
  return AtLine(expression.line, Negate(negative));
}

Result<Value> Evaluator::EvaluateBinary(const Expression& expression) {
  const Value left = TRY(Evaluate(*expression.operands[0]));
  if (expression.kind == Kind::kAnd && !Truth(left)) return left;
  if (expression.kind == Kind::kOr && Truth(left)) return left;
  const Value right = TRY(Evaluate(*expression.operands[1]));
  if (expression.kind != Kind::kBinary) return right;
  return AtLine(expression.line, Binary(expression.name, left, right, budget_));
}

Result<Value> Evaluator::EvaluateCondition(const Expression& expression) {
  if (Truth(TRY(Evaluate(*expression.operands[0])))) return Evaluate(*expression.operands[1]);
  if (expression.operands[2] != nullptr) return Evaluate(*expression.operands[2]);
  return Value::Missing("the condition is false and there is no else");
}

Result<Value> Evaluator::EvaluateItem(const Expression& expression) {
  const Value value = TRY(Evaluate(*expression.operands[0]));
  if (expression.kind == Kind::kAttribute) {
    return AtLine(expression.line, Attribute(value, expression.name));
  }
  const Value key = TRY(Evaluate(*expression.operands[1]));
  const SpannedText* name = key.AsText();
  if (const auto* loop = value.As<std::shared_ptr<Loop>>(); loop != nullptr && name != nullptr) {
    return LoopAttribute(*loop, name->text());
  }
  return AtLine(expression.line, GetItem(value, key, budget_));
}

// As jinja2: `a.name` prefers what Python knows as an attribute, `a['name']` the item.
Result<Value> Evaluator::Attribute(const Value& value, const std::string& name) {
  if (const auto* loop = value.As<std::shared_ptr<Loop>>()) return LoopAttribute(*loop, name);
  if (HasMethod(value, name)) {
    return Value(std::make_shared<const Method>(Method{value, name}));
  }
  return GetItem(value, Value::Str(name, /*trusted=*/true), budget_);
}

Result<Value> Evaluator::EvaluateSlice(const Expression& expression) {
  Value parts[4];
  for (size_t i = 0; i < 4; ++i) {
    const ExpressionPtr& operand = expression.operands[i];
    parts[i] = operand == nullptr ? Value(None{}) : TRY(Evaluate(*operand));
  }
  return AtLine(expression.line, Slice(parts[0], parts[1], parts[2], parts[3], budget_));
}

Result<Value> Evaluator::EvaluateConcat(const Expression& expression) {
  SpannedText concat;
  for (const ExpressionPtr& operand : expression.operands) {
    const Value value = TRY(Evaluate(*operand));
    const Text text = TRY(AtLine(expression.line, Str(value, budget_)));
    TRY(AtLine(expression.line, budget_.SpendText(*text)));
    concat.Append(*text);
  }
  return Value::Str(std::move(concat));
}

Result<Value> Evaluator::EvaluateCompare(const Expression& expression) {
  Value left = TRY(Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = TRY(Evaluate(*expression.operands[i + 1]));
    const bool holds =
        TRY(AtLine(expression.line, Compare(expression.operators[i], left, right, budget_)));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::EvaluateFilter(const Expression& expression) {
  const Value input = TRY(Evaluate(*expression.operands[0]));
  const Arguments arguments = TRY(EvaluateArguments(expression));
  if (expression.kind == Kind::kFilter) {
    return AtLine(expression.line, expression.filter(input, arguments, budget_));
  }
  return Value(TRY(AtLine(expression.line, expression.test(input, arguments, budget_))));
}

Result<Arguments> Evaluator::EvaluateArguments(const Expression& expression) {
  Arguments arguments;
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    arguments.positional.push_back(TRY(Evaluate(*expression.operands[i])));
  }
  for (const auto& [name, value] : expression.keywords) {
    arguments.named.emplace_back(name, TRY(Evaluate(*value)));
  }
  return arguments;
}

Result<Value> Evaluator::EvaluateCall(const Expression& expression, const Value* caller) {
  const Value callee = TRY(Evaluate(*expression.operands[0]));
  Arguments arguments = TRY(EvaluateArguments(expression));
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return Call(callee, arguments, expression.line);
}

Result<Value> Evaluator::Call(const Value& callee, const Arguments& arguments, int line) {
  if (const auto* macro = callee.As<std::shared_ptr<const Macro>>()) {
    return CallMacro(**macro, arguments, line);
  }
  if (const auto* method = callee.As<std::shared_ptr<const Method>>()) {
    if (const auto* loop = (*method)->self.As<std::shared_ptr<Loop>>()) {
      return AtLine(line, CallLoop(**loop, (*method)->name, arguments));
    }
    return AtLine(line, CallMethod(**method, arguments, budget_));
  }
  if (const Function* function = callee.As<Function>()) {
    return CallFunction(*function, arguments, line);
  }
  if (const Undefined* undefined = callee.As<Undefined>(); undefined && undefined->why) {
    return AtLine(line, InvalidArgument("{}, so it cannot be called", *undefined->why));
  }
  return AtLine(line, InvalidArgument("a value of type '{}' cannot be called", TypeName(callee)));
}

Result<Value> Evaluator::CallFunction(Function function, const Arguments& arguments, int line) {
  switch (function) {
    case Function::kRange: return AtLine(line, MakeRange(arguments, budget_));
    case Function::kNamespace: return AtLine(line, MakeNamespace(arguments));
    case Function::kDict: return AtLine(line, MakeDictFrom(arguments, budget_));
    case Function::kStrftimeNow: return AtLine(line, StrftimeNow(arguments));
    case Function::kRaiseException: break;
  }
  // The template's message is for the user as it is.
  const Bound bound = TRY(AtLine(line, Bind(arguments, {"message"})));
  const Text message = TRY(AtLine(line, Str(bound[0].value_or(Value()), budget_)));
  return Status(StatusCode::kInvalidArgument, message->text());
}

Result<Value> Evaluator::CallMacro(const Macro& macro, const Arguments& arguments, int line) {
  TRY(Enter(line));
  BlockScope scope(*this, macro.scope);
  const Statement& definition = *macro.definition;
  TRY(AtLine(line, BindMacro(definition, arguments)));
  for (const Parameter& parameter : definition.parameters) {
    if (scope_->variables.Find(parameter.name) != nullptr) continue;
    Value fallback = Value::Missing("parameter '" + parameter.name + "' was not provided");
    if (parameter.fallback != nullptr) fallback = TRY(Evaluate(*parameter.fallback));
    scope_->Set(parameter.name, std::move(fallback));
  }
  Value text;
  TRY(Captured(definition.body, text));
  Leave();
  return text;
}

// The arguments that are given, as variables of the current scope.
Status Evaluator::BindMacro(const Statement& definition, const Arguments& arguments) {
  const std::vector<Parameter>& parameters = definition.parameters;
  const std::vector<Value>& positional = arguments.positional;
  const size_t direct = std::min(positional.size(), parameters.size());
  for (size_t i = 0; i < direct; ++i) scope_->Set(parameters[i].name, positional[i]);
  Dict rest;
  for (const auto& [name, value] : arguments.named) {
    const bool is_parameter =
        std::any_of(parameters.begin() + static_cast<ptrdiff_t>(direct), parameters.end(),
                    [&, &name = name](const Parameter& p) { return p.name == name; });
    if (is_parameter || (name == "caller" && definition.uses_caller)) {
      scope_->Set(name, value);
    } else if (definition.uses_kwargs) {
      TRY(rest.Set(Value::Str(name, /*trusted=*/true), value));
    } else {
      return InvalidArgument("the macro has no parameter '{}'", name);
    }
  }
  if (definition.uses_caller && scope_->variables.Find("caller") == nullptr) {
    scope_->Set("caller", Value::Missing("there is no caller"));
  }
  if (definition.uses_kwargs) scope_->Set("kwargs", TRY(MakeDict(std::move(rest))));
  if (definition.uses_varargs) {
    std::vector<Value> extra(positional.begin() + static_cast<ptrdiff_t>(direct), positional.end());
    scope_->Set("varargs", TRY(MakeList(std::move(extra), /*is_tuple=*/true)));
  } else if (positional.size() > direct) {
    return InvalidArgument("the macro takes at most {} arguments, {} given", parameters.size(),
                           positional.size());
  }
  return {};
}

}  // namespace fathom::jinja
