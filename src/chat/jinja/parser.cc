#include "chat/jinja/parser.h"

#include <algorithm>

#include "chat/jinja/expression_parser.h"

namespace fathom::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Result<Program> Run() {
    Program program;
    TRY(ParseBody({}, program.body));
    return program;
  }

 private:
  using Kind = Statement::Kind;
  using Names = std::initializer_list<std::string_view>;

  // Statements up to a tag that begins with one of `ends`, whose name is then the current token;
  // without `ends`, up to the end of the template.
  Status ParseBody(Names ends, Body& body) {
    TRY(Enter());
    while (Current().kind != Token::Kind::kEnd) {
      const Token& token = Next();
      if (token.kind == Token::Kind::kData) {
        Statement text(Kind::kText, token.line);
        text.text = std::make_shared<const SpannedText>(token.text, /*trusted=*/true);
        body.push_back(std::move(text));
      } else if (token.kind == Token::Kind::kPrintBegin) {
        Statement print(Kind::kPrint, token.line);
        print.expressions.push_back(TRY(ParseTuple(/*with_condition=*/true)));
        if (Current().kind != Token::Kind::kPrintEnd) return Unexpected();
        Next();
        body.push_back(std::move(print));
      } else {
        const bool at_end = Current().kind == Token::Kind::kName &&
                            std::find(ends.begin(), ends.end(), Current().text) != ends.end();
        if (at_end) {
          Leave();
          return {};
        }
        TRY(ParseStatement(body));
      }
    }
    if (ends.size() > 0) {
      return SyntaxError(Current().line, fmt::format("'{}' is missing", *(ends.end() - 1)));
    }
    Leave();
    return {};
  }

  Status EndTag() {
    if (Current().kind != Token::Kind::kBlockEnd) return Unexpected();
    Next();
    return {};
  }

  // What follows the tag that opened a block, up to and with the tag `end`.
  Status ParseBlock(std::string_view end, Body& body) {
    SkipOp(":");
    TRY(EndTag());
    TRY(ParseBody({end}, body));
    Next();
    return EndTag();
  }

  Status ParseStatement(Body& body) {
    const int line = Current().line;
    const std::string name = TRY(ExpectName());
    Statement statement(Kind::kScope, line);
    if (name == "if") {
      TRY(ParseIf(statement));
    } else if (name == "for") {
      TRY(ParseFor(statement));
    } else if (name == "set") {
      TRY(ParseSet(statement));
    } else if (name == "macro") {
      TRY(ParseMacro(statement));
    } else if (name == "call") {
      TRY(ParseCallBlock(statement));
    } else if (name == "with") {
      TRY(ParseWith(statement));
    } else if (name == "filter") {
      statement.kind = Kind::kFilterBlock;
      statement.expressions.push_back(TRY(ParseFilters(BlockText(line), /*inline_first=*/true)));
      TRY(ParseBlock("endfilter", statement.body));
    } else if (name == "generation") {  // transformers marks what the assistant wrote with it
      TRY(ParseBlock("endgeneration", statement.body));
    } else if (name == "print") {
      statement.kind = Kind::kPrint;
      do {
        statement.expressions.push_back(TRY(ParseExpression()));
      } while (SkipOp(","));
      TRY(EndTag());
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) return SyntaxError(line, fmt::format("'{}' is outside of a loop", name));
      statement.kind = name == "break" ? Kind::kBreak : Kind::kContinue;
      TRY(EndTag());
    } else {
      return UnknownTag(line, name);
    }
    body.push_back(std::move(statement));
    return {};
  }

  Status UnknownTag(int line, const std::string& name) const {
    static constexpr std::string_view kLeftOut[] = {"autoescape", "block",  "do",      "extends",
                                                    "from",       "import", "include", "trans"};
    for (const std::string_view known : kLeftOut) {
      if (name == known) return Unsupported(line, "the tag '" + name + "'");
    }
    return SyntaxError(line, "unexpected tag '" + name + "'");
  }

  static ExpressionPtr BlockText(int line) {
    return std::make_unique<const Expression>(Expression::Kind::kName, line, kBlockText);
  }

  Status ParseIf(Statement& statement) {
    statement.kind = Kind::kIf;
    while (true) {
      Statement::Branch branch;
      branch.condition = TRY(ParseTuple(/*with_condition=*/false));
      SkipOp(":");
      TRY(EndTag());
      TRY(ParseBody({"elif", "else", "endif"}, branch.body));
      statement.branches.push_back(std::move(branch));
      const std::string end = Next().text;
      if (end == "elif") continue;
      if (end == "else") {
        statement.branches.emplace_back();
        return ParseBlock("endif", statement.branches.back().body);
      }
      return EndTag();
    }
  }

  Status ParseFor(Statement& statement) {
    statement.kind = Kind::kFor;
    statement.target = TRY(ParseTarget(/*with_namespace=*/false, "in"));
    if (!SkipName("in")) return Unexpected();
    statement.expressions.push_back(TRY(ParseTuple(/*with_condition=*/false, "recursive")));
    statement.expressions.push_back(nullptr);
    if (SkipName("if")) statement.expressions[1] = TRY(ParseExpression());
    if (IsName("recursive")) return Unsupported(statement.line, "a recursive loop");
    SkipOp(":");
    TRY(EndTag());
    ++loops_;
    TRY(ParseBody({"else", "endfor"}, statement.body));
    --loops_;
    if (Next().text == "else") return ParseBlock("endfor", statement.else_body);
    return EndTag();
  }

  Status ParseSet(Statement& statement) {
    statement.target = TRY(ParseTarget(/*with_namespace=*/true));
    if (SkipOp("=")) {
      statement.kind = Kind::kSet;
      statement.expressions.push_back(TRY(ParseTuple(/*with_condition=*/true)));
      return EndTag();
    }
    statement.kind = Kind::kSetBlock;
    const int line = statement.line;
    statement.expressions.push_back(TRY(ParseFilters(BlockText(line), /*inline_first=*/false)));
    return ParseBlock("endset", statement.body);
  }

  Status ParseParameters(Statement& statement) {
    TRY(ExpectOp("("));
    while (!IsOp(")")) {
      Parameter parameter;
      const int line = Current().line;
      parameter.name = TRY(ExpectName());
      for (const Parameter& other : statement.parameters) {
        if (other.name == parameter.name) {
          return SyntaxError(line, "parameter '" + parameter.name + "' is named twice");
        }
      }
      if (SkipOp("=")) {
        parameter.fallback = TRY(ParseExpression());
      } else if (!statement.parameters.empty() && statement.parameters.back().fallback) {
        return SyntaxError(line, "a parameter without a default follows one with a default");
      }
      statement.parameters.push_back(std::move(parameter));
      if (!SkipOp(",")) break;
    }
    return ExpectOp(")");
  }

  // The body of a macro or of a call block, which no loop around it reaches into.
  Status ParseMacroBody(std::string_view end, Statement& statement) {
    const int loops = std::exchange(loops_, 0);
    const bool outer[] = {saw_caller_, saw_varargs_, saw_kwargs_};
    saw_caller_ = saw_varargs_ = saw_kwargs_ = false;
    TRY(ParseBlock(end, statement.body));
    statement.uses_caller = saw_caller_;
    statement.uses_varargs = saw_varargs_;
    statement.uses_kwargs = saw_kwargs_;
    saw_caller_ |= outer[0];
    saw_varargs_ |= outer[1];
    saw_kwargs_ |= outer[2];
    loops_ = loops;
    return {};
  }

  Status ParseMacro(Statement& statement) {
    statement.kind = Kind::kMacro;
    statement.target.name = TRY(ExpectName());
    TRY(ParseParameters(statement));
    return ParseMacroBody("endmacro", statement);
  }

  Status ParseCallBlock(Statement& statement) {
    statement.kind = Kind::kCallBlock;
    if (IsOp("(")) TRY(ParseParameters(statement));
    statement.expressions.push_back(TRY(ParseExpression()));
    if (statement.expressions[0]->kind != Expression::Kind::kCall) {
      return SyntaxError(statement.line, "'call' needs a call");
    }
    return ParseMacroBody("endcall", statement);
  }

  Status ParseWith(Statement& statement) {
    statement.kind = Kind::kWith;
    while (Current().kind != Token::Kind::kBlockEnd) {
      statement.targets.push_back(TRY(ParseTarget(/*with_namespace=*/false)));
      TRY(ExpectOp("="));
      statement.expressions.push_back(TRY(ParseExpression()));
      if (!SkipOp(",")) break;
    }
    return ParseBlock("endwith", statement.body);
  }

  int loops_ = 0;  // around the current statement
};

}  // namespace

Result<Program> ParseProgram(std::string_view source) {
  return Parser(TRY(Tokenize(source))).Run();
}

}  // namespace fathom::jinja
