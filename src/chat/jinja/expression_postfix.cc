// What may follow an operand: subscripts, calls with their arguments, filters and tests.
#include <iterator>

#include "chat/jinja/builtins.h"
#include "chat/jinja/expression_parser.h"

namespace fathom::jinja {

Result<ExpressionPtr> ExpressionParser::ParsePostfix(ExpressionPtr expression) {
  while (true) {
    if (IsOp(".") || IsOp("[")) {
      expression = TRY(ParseSubscript(std::move(expression)));
    } else if (IsOp("(")) {
      expression = TRY(ParseCall(std::move(expression)));
    } else {
      return expression;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::ParseFilterChain(ExpressionPtr expression) {
  while (true) {
    if (SkipOp("|")) {
      expression = TRY(ParseFilter(std::move(expression)));
    } else if (IsName("is")) {
      expression = TRY(ParseTest(std::move(expression)));
    } else if (IsOp("(")) {
      expression = TRY(ParseCall(std::move(expression)));
    } else {
      return expression;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::ParseFilters(ExpressionPtr input, bool inline_first) {
  if (inline_first) input = TRY(ParseFilter(std::move(input)));
  while (SkipOp("|")) input = TRY(ParseFilter(std::move(input)));
  return input;
}

Result<ExpressionPtr> ExpressionParser::ParseSubscript(ExpressionPtr expression) {
  const int line = Current().line;
  if (SkipOp(".")) {
    if (Current().kind != Token::Kind::kInteger) {
      std::string name = TRY(ExpectName());
      return Make(Kind::kAttribute, line, std::move(name), std::move(expression));
    }
    Expression index(Kind::kConstant, line);
    index.constant = Value(Next().integer);
    ExpressionPtr key = TRY(Finish(std::move(index)));
    return Make(Kind::kItem, line, {}, std::move(expression), std::move(key));
  }
  TRY(ExpectOp("["));
  ExpressionPtr parts[3];  // begin, end, step
  bool is_slice = false;
  for (ExpressionPtr& part : parts) {
    if (!IsOp(":") && !IsOp("]")) part = TRY(ParseExpression());
    if (!SkipOp(":")) break;
    is_slice = true;
  }
  if (IsOp(",")) return Unsupported(line, "a tuple as a subscript");
  TRY(ExpectOp("]"));
  if (is_slice) {
    return Make(Kind::kSlice, line, {}, std::move(expression), std::move(parts[0]),
                std::move(parts[1]), std::move(parts[2]));
  }
  if (parts[0] == nullptr) return Unsupported(line, "an empty subscript");
  return Make(Kind::kItem, line, {}, std::move(expression), std::move(parts[0]));
}

Result<ExpressionParser::Call> ExpressionParser::ParseArguments() {
  Call call;
  call.operands.push_back(nullptr);
  const int line = Current().line;
  TRY(ExpectOp("("));
  while (!IsOp(")")) {
    if (IsOp("*") || IsOp("**")) return Unsupported(line, "an argument with '*'");
    const bool is_keyword =
        Current().kind == Token::Kind::kName && Is(tokens_[at_ + 1], Token::Kind::kOperator, "=");
    if (is_keyword) {
      std::string name = Next().text;
      Next();
      for (const auto& [known, value] : call.keywords) {
        if (known == name) return SyntaxError(line, "argument '" + name + "' is given twice");
      }
      ExpressionPtr value = TRY(ParseExpression());
      call.keywords.emplace_back(std::move(name), std::move(value));
    } else if (!call.keywords.empty()) {
      return SyntaxError(line, "an argument without a name follows one with a name");
    } else {
      call.operands.push_back(TRY(ParseExpression()));
    }
    if (!SkipOp(",")) break;
  }
  TRY(ExpectOp(")"));
  return call;
}

Result<ExpressionPtr> ExpressionParser::ParseCall(ExpressionPtr callee) {
  Expression call(Kind::kCall, Current().line);
  Call arguments = TRY(ParseArguments());
  call.operands = std::move(arguments.operands);
  call.keywords = std::move(arguments.keywords);
  call.operands[0] = std::move(callee);
  return Finish(std::move(call));
}

Result<ExpressionPtr> ExpressionParser::ParseFilter(ExpressionPtr input) {
  Expression call(Kind::kFilter, Current().line);
  call.name = TRY(ExpectName());
  call.filter = FindFilter(call.name);
  if (call.filter == nullptr) return Unsupported(call.line, "the filter '" + call.name + "'");
  Call arguments;
  arguments.operands.push_back(nullptr);
  if (IsOp("(")) arguments = TRY(ParseArguments());
  call.operands = std::move(arguments.operands);
  call.keywords = std::move(arguments.keywords);
  call.operands[0] = std::move(input);
  return Finish(std::move(call));
}

Result<ExpressionPtr> ExpressionParser::ParseTest(ExpressionPtr input) {
  const int line = Next().line;  // is
  const bool negated = SkipName("not");
  Expression test(Kind::kTest, line);
  test.name = TRY(ExpectName());
  test.test = FindTest(test.name);
  if (test.test == nullptr) return Unsupported(line, "the test '" + test.name + "'");
  test.operands.push_back(std::move(input));
  const Token& token = Current();
  const bool is_literal = token.kind == Token::Kind::kString ||
                          token.kind == Token::Kind::kInteger ||
                          token.kind == Token::Kind::kFloat || IsOp("[") || IsOp("{") ||
                          (token.kind == Token::Kind::kName && token.text != "else" &&
                           token.text != "or" && token.text != "and");
  if (IsOp("(")) {
    Call arguments = TRY(ParseArguments());
    std::move(arguments.operands.begin() + 1, arguments.operands.end(),
              std::back_inserter(test.operands));
    test.keywords = std::move(arguments.keywords);
  } else if (IsName("is")) {
    return SyntaxError(line, "tests cannot be chained with 'is'");
  } else if (is_literal) {
    test.operands.push_back(TRY(ParsePostfix(TRY(ParsePrimary()))));
  }
  ExpressionPtr result = TRY(Finish(std::move(test)));
  return negated ? Make(Kind::kNot, line, {}, std::move(result)) : Result(std::move(result));
}

}  // namespace fathom::jinja
