// Expressions: the half of the parser that statements build on. What follows an operand is in
// expression_postfix.cc, the rest in expression_parser.cc.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "chat/jinja/ast.h"
#include "chat/jinja/lexer.h"

namespace fathom::jinja {

inline constexpr int kMaxNesting = 100;          // of brackets and of blocks in a template
inline constexpr int kMaxExpressionDepth = 200;  // of one expression's tree

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // An expression, or several with commas between them: a tuple. It ends before `end`, a name.
  Result<ExpressionPtr> ParseTuple(bool with_condition, std::string_view end = {});
  Result<ExpressionPtr> ParseExpression(bool with_condition = true);
  // Filters behind each other, of `input`. The first one's "|" is optional when `inline_first`.
  Result<ExpressionPtr> ParseFilters(ExpressionPtr input, bool inline_first);
  Result<Target> ParseTarget(bool with_namespace, std::string_view end = {});

  const Token& Current() const { return tokens_[at_]; }
  const Token& Next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool Is(Token::Kind kind, std::string_view text) const { return Is(Current(), kind, text); }
  bool IsName(std::string_view text) const { return Is(Token::Kind::kName, text); }
  bool IsOp(std::string_view text) const { return Is(Token::Kind::kOperator, text); }
  bool SkipName(std::string_view text) { return IsName(text) && (Next(), true); }
  bool SkipOp(std::string_view text) { return IsOp(text) && (Next(), true); }
  Status ExpectOp(std::string_view text);
  Result<std::string> ExpectName();
  Status Unexpected() const;  // the current token is
  Status Unsupported(int line, std::string_view what) const;

  // Counts how deep the parser is, so that its stack is bounded.
  Status Enter();
  void Leave() { --nesting_; }

  // Names of the special macro variables that were read since they were last cleared.
  bool saw_caller_ = false, saw_varargs_ = false, saw_kwargs_ = false;

 private:
  using Kind = Expression::Kind;
  using Operands = std::vector<ExpressionPtr>;
  struct Call {
    Operands operands;  // the first one is left to the caller
    std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  };

  static bool Is(const Token& token, Token::Kind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }
  // Checks the depth.
  static Result<ExpressionPtr> Finish(Expression expression);
  template <class... Parts>
  static Result<ExpressionPtr> Make(Kind kind, int line, std::string name, Parts... operands);

  Result<ExpressionPtr> ParseCondition();
  Result<ExpressionPtr> ParseOr();
  Result<ExpressionPtr> ParseAnd();
  Result<ExpressionPtr> ParseNot();
  Result<ExpressionPtr> ParseCompare();
  Result<ExpressionPtr> ParseSum();
  Result<ExpressionPtr> ParseConcat();
  Result<ExpressionPtr> ParseProduct();
  Result<ExpressionPtr> ParsePower();
  Result<ExpressionPtr> ParseUnary(bool with_filters);
  Result<ExpressionPtr> ParsePrimary();
  Result<ExpressionPtr> ParseName();
  Result<ExpressionPtr> ParseList();
  Result<ExpressionPtr> ParseDict();
  Result<ExpressionPtr> ParsePostfix(ExpressionPtr expression);
  Result<ExpressionPtr> ParseFilterChain(ExpressionPtr expression);
  Result<ExpressionPtr> ParseSubscript(ExpressionPtr expression);
  Result<ExpressionPtr> ParseCall(ExpressionPtr callee);
  Result<ExpressionPtr> ParseFilter(ExpressionPtr input);
  Result<ExpressionPtr> ParseTest(ExpressionPtr input);
  Result<Call> ParseArguments();
  bool AtTupleEnd(std::string_view end) const;
  // Left-associative operators of one precedence.
  Result<ExpressionPtr> ParseBinary(std::initializer_list<std::string_view> operators,
                                    Result<ExpressionPtr> (ExpressionParser::*operand)());

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

template <class... Parts>
Result<ExpressionPtr> ExpressionParser::Make(Kind kind, int line, std::string name,
                                             Parts... operands) {
  Expression expression(kind, line, std::move(name));
  (expression.operands.push_back(std::move(operands)), ...);
  return Finish(std::move(expression));
}

}  // namespace fathom::jinja
