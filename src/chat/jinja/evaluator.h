// Runs a program once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/spanned_text.h"
#include "base/status.h"
#include "chat/jinja/ast.h"
#include "chat/jinja/budget.h"
#include "chat/jinja/builtins.h"
#include "chat/jinja/named_values.h"
#include "chat/jinja/value.h"

namespace fathom::jinja {

// Variables of a block. Those of the blocks around it are its parents'.
struct Scope {
  Scope* parent = nullptr;
  bool captured = false;  // by a macro, which may outlive the block
  NamedValues<Value> variables;

  const Value* Find(std::string_view name) const;  // in the parents too
  void Set(std::string_view name, Value value) { variables.Set(name, std::move(value)); }
};

struct Macro {
  const Statement* definition;  // a kMacro or a kCallBlock
  Scope* scope;                 // the evaluator's
};

// The `loop` of a for statement. Items that its condition leaves out are not in it, and the
// condition is asked no earlier than needed.
struct Loop {
  std::shared_ptr<const List> source;
  const Statement* statement = nullptr;
  Scope* scope = nullptr;        // around the loop
  size_t read = 0;               // of source
  bool ended = false;            // the statement is done
  std::vector<Value> items;      // accepted so far
  size_t index = 0;              // of the current item
  std::optional<Value> changed;  // the last arguments of loop.changed()
};

// One render. THREAD: one.
class Evaluator {
 public:
  explicit Evaluator(const WorkLimits& limits) : budget_(limits) {}
  ~Evaluator();

  // A variable of the outermost scope; a later one of the same name wins.
  void Define(std::string_view name, Value value) { globals_.Set(name, std::move(value)); }
  Result<SpannedText> Run(const Program& program);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using Kind = Expression::Kind;
  // A scope of its own, until the end of the C++ block.
  class BlockScope {
   public:
    BlockScope(Evaluator& evaluator, Scope* parent);
    ~BlockScope();

   private:
    Evaluator& evaluator_;
    Scope* const outer_;
    std::unique_ptr<Scope> scope_;
  };

  Result<Flow> Execute(const Body& body);
  Result<Flow> Execute(const Statement& statement);
  Result<Flow> Print(const Statement& statement);
  Result<Flow> If(const Statement& statement);
  Result<Flow> For(const Statement& statement);
  Result<Flow> Nested(const Body& body);  // in a scope of its own
  Result<Flow> FilterBlock(const Statement& statement);
  Result<Flow> CallBlock(const Statement& statement);
  Result<Flow> With(const Statement& statement);
  Result<Flow> Captured(const Body& body, Value& text);  // what `body` prints, as text
  Status Emit(const SpannedText& text);
  Status Assign(const Target& target, const Value& value);
  Result<Value> MakeMacro(const Statement& definition);

  Result<bool> Accepts(const Loop& loop, const Value& item);
  // Whether there are at least `count` accepted items, which are read as needed.
  Result<bool> Read(Loop& loop, size_t count);
  Result<Value> LoopAttribute(const std::shared_ptr<Loop>& loop, const std::string& name);
  Result<Value> CallLoop(Loop& loop, const std::string& name, const Arguments& arguments);

  Result<Value> Evaluate(const Expression& expression);
  Result<Value> EvaluateCompound(const Expression& expression);
  Result<Value> EvaluateSequence(const Expression& expression);
  Result<Value> EvaluateDict(const Expression& expression);
  Result<Value> EvaluateUnary(const Expression& expression);
  Result<Value> EvaluateBinary(const Expression& expression);
  Result<Value> EvaluateCondition(const Expression& expression);
  Result<Value> EvaluateItem(const Expression& expression);
  Result<Value> EvaluateSlice(const Expression& expression);
  Result<Value> EvaluateConcat(const Expression& expression);
  Result<Value> EvaluateCompare(const Expression& expression);
  Result<Value> EvaluateFilter(const Expression& expression);
  Result<Value> EvaluateCall(const Expression& expression, const Value* caller);
  Result<Arguments> EvaluateArguments(const Expression& expression);
  Value Variable(const std::string& name) const;
  Result<Value> Attribute(const Value& value, const std::string& name);
  Result<Value> Call(const Value& callee, const Arguments& arguments, int line);
  Result<Value> CallFunction(Function function, const Arguments& arguments, int line);
  Result<Value> MakeNamespace(const Arguments& arguments);
  Result<Value> CallMacro(const Macro& macro, const Arguments& arguments, int line);
  Status BindMacro(const Statement& definition, const Arguments& arguments);

  Status Enter(int line);
  void Leave() { --depth_; }

  Budget budget_;
  int depth_ = 0;
  Scope globals_;
  Scope* scope_ = &globals_;
  SpannedText* out_ = nullptr;
  std::vector<std::unique_ptr<Scope>> captured_;        // macros may still use them
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // to cut the cycles that they can be in
};

}  // namespace fathom::jinja
