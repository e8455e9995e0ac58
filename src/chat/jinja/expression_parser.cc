#include "chat/jinja/expression_parser.h"

#include <algorithm>

namespace fathom::jinja {

Status ExpressionParser::ExpectOp(std::string_view text) {
  if (SkipOp(text)) return {};
  return SyntaxError(Current().line, fmt::format("expected '{}'", text));
}

Result<std::string> ExpressionParser::ExpectName() {
  if (Current().kind != Token::Kind::kName) return Unexpected();
  return Next().text;
}

Status ExpressionParser::Unexpected() const {
  const Token& token = Current();
  switch (token.kind) {
    case Token::Kind::kBlockEnd:
    case Token::Kind::kPrintEnd: return SyntaxError(token.line, "unexpected end of a tag");
    case Token::Kind::kEnd: return SyntaxError(token.line, "unexpected end of the template");
    default: return SyntaxError(token.line, fmt::format("unexpected '{}'", token.text));
  }
}

Status ExpressionParser::Unsupported(int line, std::string_view what) const {
  return Unimplemented("chat template, line {}: {} is not supported", line, what);
}

Status ExpressionParser::Enter() {
  if (++nesting_ <= kMaxNesting) return {};
  return ResourceExhausted("chat template, line {}: nested more than {} deep", Current().line,
                           kMaxNesting);
}

Result<ExpressionPtr> ExpressionParser::Finish(Expression expression) {
  const auto deeper = [&](const ExpressionPtr& part) {
    if (part != nullptr) expression.depth = std::max(expression.depth, part->depth + 1);
  };
  for (const ExpressionPtr& operand : expression.operands) deeper(operand);
  for (const auto& keyword : expression.keywords) deeper(keyword.second);
  if (expression.depth > kMaxExpressionDepth) {
    return ResourceExhausted("chat template, line {}: an expression of more than {} levels",
                             expression.line, kMaxExpressionDepth);
  }
  return ExpressionPtr(std::make_unique<const Expression>(std::move(expression)));
}

Result<ExpressionPtr> ExpressionParser::ParseExpression(bool with_condition) {
  TRY(Enter());
  ExpressionPtr expression = with_condition ? TRY(ParseCondition()) : TRY(ParseOr());
  Leave();
  return expression;
}

Result<ExpressionPtr> ExpressionParser::ParseCondition() {
  ExpressionPtr then = TRY(ParseOr());
  while (IsName("if")) {
    const int line = Next().line;
    ExpressionPtr condition = TRY(ParseOr());
    ExpressionPtr otherwise;
    if (SkipName("else")) {
      TRY(Enter());
      otherwise = TRY(ParseCondition());
      Leave();
    }
    then = TRY(Make(Kind::kCondition, line, {}, std::move(condition), std::move(then),
                    std::move(otherwise)));
  }
  return then;
}

Result<ExpressionPtr> ExpressionParser::ParseOr() {
  ExpressionPtr left = TRY(ParseAnd());
  while (IsName("or")) {
    const int line = Next().line;
    ExpressionPtr right = TRY(ParseAnd());
    left = TRY(Make(Kind::kOr, line, {}, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::ParseAnd() {
  ExpressionPtr left = TRY(ParseNot());
  while (IsName("and")) {
    const int line = Next().line;
    ExpressionPtr right = TRY(ParseNot());
    left = TRY(Make(Kind::kAnd, line, {}, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  const int line = Next().line;
  TRY(Enter());
  ExpressionPtr negated = TRY(ParseNot());
  Leave();
  return Make(Kind::kNot, line, {}, std::move(negated));
}

Result<ExpressionPtr> ExpressionParser::ParseCompare() {
  static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  Expression compare(Kind::kCompare, Current().line);
  compare.operands.push_back(TRY(ParseSum()));
  while (true) {
    const Token& token = Current();
    const bool is_not_in =
        IsName("not") && at_ + 1 < tokens_.size() && Is(tokens_[at_ + 1], Token::Kind::kName, "in");
    if (is_not_in) {
      Next();
      Next();
      compare.operators.emplace_back("not in");
    } else if (SkipName("in")) {
      compare.operators.emplace_back("in");
    } else if (token.kind == Token::Kind::kOperator &&
               std::find(std::begin(kOperators), std::end(kOperators), token.text) !=
                   std::end(kOperators)) {
      compare.operators.push_back(Next().text);
    } else {
      break;
    }
    compare.operands.push_back(TRY(ParseSum()));
  }
  if (compare.operators.empty()) return std::move(compare.operands[0]);
  return Finish(std::move(compare));
}

Result<ExpressionPtr> ExpressionParser::ParseBinary(
    std::initializer_list<std::string_view> operators,
    Result<ExpressionPtr> (ExpressionParser::*operand)()) {
  ExpressionPtr left = TRY((this->*operand)());
  while (Current().kind == Token::Kind::kOperator &&
         std::find(operators.begin(), operators.end(), Current().text) != operators.end()) {
    const Token& op = Next();
    ExpressionPtr right = TRY((this->*operand)());
    left = TRY(Make(Kind::kBinary, op.line, op.text, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::ParseSum() {
  return ParseBinary({"+", "-"}, &ExpressionParser::ParseConcat);
}

Result<ExpressionPtr> ExpressionParser::ParseConcat() {
  Expression concat(Kind::kConcat, Current().line);
  do {
    concat.operands.push_back(TRY(ParseProduct()));
  } while (SkipOp("~"));
  if (concat.operands.size() == 1) return std::move(concat.operands[0]);
  return Finish(std::move(concat));
}

Result<ExpressionPtr> ExpressionParser::ParseProduct() {
  return ParseBinary({"*", "/", "//", "%"}, &ExpressionParser::ParsePower);
}

// jinja2 groups a ** b ** c from the left, unlike Python.
Result<ExpressionPtr> ExpressionParser::ParsePower() {
  ExpressionPtr left = TRY(ParseUnary(/*with_filters=*/true));
  while (IsOp("**")) {
    const int line = Next().line;
    ExpressionPtr right = TRY(ParseUnary(/*with_filters=*/true));
    left = TRY(Make(Kind::kBinary, line, "**", std::move(left), std::move(right)));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::ParseUnary(bool with_filters) {
  ExpressionPtr expression;
  const int line = Current().line;
  if (IsOp("-") || IsOp("+")) {
    const Kind kind = Next().text == "-" ? Kind::kNegative : Kind::kPositive;
    TRY(Enter());
    expression = TRY(Make(kind, line, {}, TRY(ParseUnary(/*with_filters=*/false))));
    Leave();
  } else {
    expression = TRY(ParsePrimary());
  }
  expression = TRY(ParsePostfix(std::move(expression)));
  return with_filters ? ParseFilterChain(std::move(expression)) : Result(std::move(expression));
}

Result<ExpressionPtr> ExpressionParser::ParsePrimary() {
  const Token& token = Current();
  Expression constant(Kind::kConstant, token.line);
  switch (token.kind) {
    case Token::Kind::kName: return ParseName();
    case Token::Kind::kString: {
      std::string text;
      while (Current().kind == Token::Kind::kString) text += Next().text;
      constant.constant = Value::Str(text, /*trusted=*/true);
      return Finish(std::move(constant));
    }
    case Token::Kind::kInteger: constant.constant = Value(Next().integer); break;
    case Token::Kind::kFloat: constant.constant = Value(Next().number); break;
    default:
      if (IsOp("[")) return ParseList();
      if (IsOp("{")) return ParseDict();
      if (!SkipOp("(")) return Unexpected();
      if (SkipOp(")")) return Make(Kind::kTuple, token.line, {});
      ExpressionPtr inner = TRY(ParseTuple(/*with_condition=*/true));
      TRY(ExpectOp(")"));
      return inner;
  }
  return Finish(std::move(constant));
}

Result<ExpressionPtr> ExpressionParser::ParseName() {
  const Token& token = Next();
  const std::string& name = token.text;
  Expression constant(Kind::kConstant, token.line);
  if (name == "true" || name == "True") {
    constant.constant = Value(true);
  } else if (name == "false" || name == "False") {
    constant.constant = Value(false);
  } else if (name == "none" || name == "None") {
    constant.constant = Value(None{});
  } else {
    saw_caller_ = saw_caller_ || name == "caller";
    saw_varargs_ = saw_varargs_ || name == "varargs";
    saw_kwargs_ = saw_kwargs_ || name == "kwargs";
    return Make(Kind::kName, token.line, name);
  }
  return Finish(std::move(constant));
}

bool ExpressionParser::AtTupleEnd(std::string_view end) const {
  const Token::Kind kind = Current().kind;
  return kind == Token::Kind::kBlockEnd || kind == Token::Kind::kPrintEnd || IsOp(")") ||
         (!end.empty() && IsName(end));
}

Result<ExpressionPtr> ExpressionParser::ParseTuple(bool with_condition, std::string_view end) {
  Expression tuple(Kind::kTuple, Current().line);
  bool has_comma = false;
  while (!AtTupleEnd(end)) {
    tuple.operands.push_back(TRY(ParseExpression(with_condition)));
    if (!SkipOp(",")) break;
    has_comma = true;
  }
  if (tuple.operands.empty()) return Unexpected();
  if (!has_comma) return std::move(tuple.operands[0]);
  return Finish(std::move(tuple));
}

Result<ExpressionPtr> ExpressionParser::ParseList() {
  Expression list(Kind::kList, Next().line);
  while (!IsOp("]")) {
    list.operands.push_back(TRY(ParseExpression()));
    if (!SkipOp(",")) break;
  }
  TRY(ExpectOp("]"));
  return Finish(std::move(list));
}

Result<ExpressionPtr> ExpressionParser::ParseDict() {
  Expression dict(Kind::kDict, Next().line);
  while (!IsOp("}")) {
    dict.operands.push_back(TRY(ParseExpression()));
    TRY(ExpectOp(":"));
    dict.operands.push_back(TRY(ParseExpression()));
    if (!SkipOp(",")) break;
  }
  TRY(ExpectOp("}"));
  return Finish(std::move(dict));
}

Result<Target> ExpressionParser::ParseTarget(bool with_namespace, std::string_view end) {
  TRY(Enter());
  Target tuple;
  bool has_comma = false;
  const int line = Current().line;
  while (!AtTupleEnd(end) && !IsOp("=")) {
    Target item;
    if (SkipOp("(")) {
      item = TRY(ParseTarget(with_namespace));
      TRY(ExpectOp(")"));
    } else {
      item.name = TRY(ExpectName());
      if (with_namespace && SkipOp(".")) item.attribute = TRY(ExpectName());
      static constexpr std::string_view kConstants[] = {"true",  "True", "false",
                                                        "False", "none", "None"};
      for (const std::string_view constant : kConstants) {
        if (item.name == constant) return SyntaxError(line, "cannot assign to " + item.name);
      }
    }
    tuple.items.push_back(std::move(item));
    if (!SkipOp(",")) break;
    has_comma = true;
  }
  Leave();
  if (tuple.items.empty()) return Unexpected();
  if (!has_comma) return Target(std::move(tuple.items[0]));
  return tuple;
}

}  // namespace fathom::jinja
