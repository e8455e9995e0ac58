// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/builtins.h"
#include "chat/jinja/value.h"

namespace fathom::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Expression {
  enum class Kind {
    kConstant,
    kName,
    kList,
    kTuple,
    kDict,       // operands: key, value, key, value...
    kAttribute,  // operands[0].name
    kItem,       // operands[0][operands[1]]
    kSlice,      // operands[0][operands[1]:operands[2]:operands[3]], the last three nullable
    kCall,       // operands[0](operands[1], ..., keywords)
    kFilter,     // operands[0] | name(operands[1], ..., keywords)
    kTest,       // operands[0] is name(operands[1], ..., keywords)
    kNegative,
    kPositive,
    kNot,
    kAnd,
    kOr,
    kBinary,     // operands[0] name operands[1]
    kConcat,     // all operands, as text
    kCompare,    // operands[0] operators[0] operands[1] operators[1] operands[2]...
    kCondition,  // operands[1] if operands[0] else operands[2], the last one nullable
  };

  Expression(Kind kind, int line, std::string name = {})
      : kind(kind), line(line), name(std::move(name)) {}

  Kind kind;
  int line;
  int depth = 1;     // of expressions within each other
  std::string name;  // of a variable, attribute, filter, test or operator
  Value constant;
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  std::vector<std::string> operators;
  Filter filter = nullptr;
  Test test = nullptr;
};

// What `for` and `set` assign to: a name, an attribute of a namespace, or a tuple of those.
struct Target {
  std::string name;  // empty for a tuple
  std::string attribute;
  std::vector<Target> items;
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // nullable
};

struct Statement {
  enum class Kind {
    kText,         // text
    kPrint,        // expressions, one after the other
    kIf,           // branches
    kFor,          // for target in expressions[0] if expressions[1] (nullable): body, else_body
    kSet,          // target = expressions[0]
    kSetBlock,     // target = expressions[0], whose kBlockText is body
    kMacro,        // target.name, parameters, body
    kCallBlock,    // expressions[0] is a kCall; parameters and body are its caller
    kWith,         // targets[i] = expressions[i]; body
    kFilterBlock,  // expressions[0], whose kBlockText is body
    kScope,        // body
    kBreak,
    kContinue,
  };

  struct Branch {
    ExpressionPtr condition;  // null: else
    Body body;
  };

  Statement(Kind kind, int line) : kind(kind), line(line) {}

  Kind kind;
  int line;
  Text text;
  Target target;
  std::vector<Target> targets;
  std::vector<ExpressionPtr> expressions;
  std::vector<Parameter> parameters;
  std::vector<Branch> branches;
  Body body, else_body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;  // of a macro's body
};

struct Program {
  Body body;
};

// The variable that holds what a filter block or a block `set` filters: no name that can be typed.
inline constexpr const char* kBlockText = "";

}  // namespace fathom::jinja
