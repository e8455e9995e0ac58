// Statements and loops.
#include "chat/jinja/evaluator.h"

#include <algorithm>
#include <limits>

#include "chat/chat_template.h"
#include "chat/jinja/at_line.h"

namespace fathom::jinja {
namespace {
constexpr size_t kScopeWork = 32;  // for a scope or a namespace that lives until the end
}

const Value* Scope::Find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    if (const Value* value = scope->variables.Find(name)) return value;
  }
  return nullptr;
}

int LoopDepth(const Loop& loop) {
  return loop.source->depth + 1;
}

Evaluator::BlockScope::BlockScope(Evaluator& evaluator, Scope* parent)
    : evaluator_(evaluator), outer_(evaluator.scope_), scope_(std::make_unique<Scope>()) {
  scope_->parent = parent;
  evaluator_.scope_ = scope_.get();
}

Evaluator::BlockScope::~BlockScope() {
  if (scope_->captured) evaluator_.captured_.push_back(std::move(scope_));
  evaluator_.scope_ = outer_;
}

Evaluator::~Evaluator() {
  for (const auto& space : namespaces_) space->attributes.Clear();
}

Result<SpannedText> Evaluator::Run(const Program& program) {
  SpannedText rendered;
  out_ = &rendered;
  budget_.Begin();
  TRY(Execute(program.body));
  return rendered;
}

Status Evaluator::Enter(int line) {
  if (++depth_ <= kMaxDepth) return {};
  return ResourceExhausted("chat template, line {}: nested more than {} deep; is a macro endless?",
                           line, kMaxDepth);
}

Result<Evaluator::Flow> Evaluator::Execute(const Body& body) {
  for (const Statement& statement : body) {
    TRY(AtLine(statement.line, budget_.Spend(1)));
    TRY(Enter(statement.line));
    const Flow flow = TRY(Execute(statement));
    Leave();
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::Execute(const Statement& statement) {
  switch (statement.kind) {
    case Statement::Kind::kText: TRY(AtLine(statement.line, Emit(*statement.text))); break;
    case Statement::Kind::kPrint: return Print(statement);
    case Statement::Kind::kIf: return If(statement);
    case Statement::Kind::kFor: return For(statement);
    case Statement::Kind::kSet: {
      const Value value = TRY(Evaluate(*statement.expressions[0]));
      TRY(AtLine(statement.line, Assign(statement.target, value)));
      break;
    }
    case Statement::Kind::kMacro: {
      const Value macro = TRY(AtLine(statement.line, MakeMacro(statement)));
      scope_->Set(statement.target.name, macro);
      break;
    }
    case Statement::Kind::kSetBlock:
    case Statement::Kind::kFilterBlock: return FilterBlock(statement);
    case Statement::Kind::kCallBlock: return CallBlock(statement);
    case Statement::Kind::kWith: return With(statement);
    case Statement::Kind::kScope: return Nested(statement.body);
    case Statement::Kind::kBreak: return Flow::kBreak;
    case Statement::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Status Evaluator::Emit(const SpannedText& text) {
  TRY(budget_.SpendText(text));
  const size_t size = out_->text().size() + text.text().size();
  if (size > kMaxRenderedBytes) {
    return ResourceExhausted("the template renders more than {} bytes", kMaxRenderedBytes);
  }
  if (size > out_->text().capacity()) TRY(budget_.Hold(2 * size));  // it doubles its room
  out_->Append(text);
  return {};
}

Result<Evaluator::Flow> Evaluator::Print(const Statement& statement) {
  for (const ExpressionPtr& expression : statement.expressions) {
    const Value value = TRY(Evaluate(*expression));
    const Text text = TRY(AtLine(statement.line, Str(value, budget_)));
    TRY(AtLine(statement.line, Emit(*text)));
  }
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::If(const Statement& statement) {
  for (const Statement::Branch& branch : statement.branches) {
    if (branch.condition == nullptr || Truth(TRY(Evaluate(*branch.condition)))) {
      return Execute(branch.body);
    }
  }
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::Nested(const Body& body) {
  BlockScope scope(*this, scope_);
  return Execute(body);
}

Result<Evaluator::Flow> Evaluator::For(const Statement& statement) {
  const Value iterable = TRY(Evaluate(*statement.expressions[0]));
  const auto loop = std::make_shared<Loop>();
  loop->source = TRY(AtLine(statement.line, Iterate(iterable, budget_)));
  loop->statement = &statement;
  loop->scope = scope_;
  // A loop that a namespace keeps must neither read on nor own itself.
  struct End {
    Loop& loop;
    ~End() {
      loop.ended = true;
      loop.changed.reset();
    }
  } end{*loop};
  bool completed = false;  // one pass; jinja2 asks that, not whether there was an item
  for (size_t i = 0; TRY(Read(*loop, i + 1)); ++i) {
    TRY(AtLine(statement.line, budget_.Spend(1)));
    loop->index = i;
    BlockScope scope(*this, scope_);
    scope_->Set("loop", Value(loop));
    TRY(AtLine(statement.line, Assign(statement.target, loop->items[i])));
    const Flow flow = TRY(Execute(statement.body));
    completed = completed || flow == Flow::kNext;
    if (flow == Flow::kBreak) break;
  }
  if (!completed) return Nested(statement.else_body);
  return Flow::kNext;
}

Result<bool> Evaluator::Accepts(const Loop& loop, const Value& item) {
  const ExpressionPtr& condition = loop.statement->expressions[1];
  if (condition == nullptr) return true;
  BlockScope scope(*this, loop.scope);
  TRY(AtLine(loop.statement->line, Assign(loop.statement->target, item)));
  return Truth(TRY(Evaluate(*condition)));
}

Result<bool> Evaluator::Read(Loop& loop, size_t count) {
  while (!loop.ended && loop.items.size() < count && loop.read < loop.source->items.size()) {
    const Value& item = loop.source->items[loop.read++];
    if (TRY(Accepts(loop, item))) loop.items.push_back(item);
  }
  return loop.items.size() >= count;
}

Result<Value> Evaluator::LoopAttribute(const std::shared_ptr<Loop>& loop, const std::string& name) {
  const Int index = static_cast<Int>(loop->index);
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "first") return Value(index == 0);
  if (name == "depth") return Value(Int{1});
  if (name == "depth0") return Value(Int{0});
  if (name == "previtem") {
    return index > 0 ? loop->items[loop->index - 1] : Value::Missing("there is no previous item");
  }
  if (name == "last") return Value(!TRY(Read(*loop, loop->index + 2)));
  if (name == "nextitem") {
    const bool exists = TRY(Read(*loop, loop->index + 2));
    return exists ? loop->items[loop->index + 1] : Value::Missing("there is no next item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    TRY(Read(*loop, std::numeric_limits<size_t>::max()));
    const Int length = static_cast<Int>(loop->items.size());
    return Value(name == "length" ? length : length - index - (name == "revindex0" ? 1 : 0));
  }
  if (name == "cycle" || name == "changed") {
    return Value(std::make_shared<const Method>(Method{Value(loop), name}));
  }
  return Value::Missing("a loop has no attribute '" + name + "'");
}

Result<Value> Evaluator::CallLoop(Loop& loop, const std::string& name, const Arguments& arguments) {
  if (!arguments.named.empty()) return InvalidArgument("'{}' takes no names", name);
  if (name == "cycle") {
    if (arguments.positional.empty()) return InvalidArgument("there is nothing to cycle through");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  const Value now = TRY(MakeList(arguments.positional, /*is_tuple=*/true));
  const bool same = loop.changed && TRY(Equal(*loop.changed, now, budget_));
  if (!loop.ended) loop.changed = now;
  return Value(!same);
}

Status Evaluator::Assign(const Target& target, const Value& value) {
  if (target.items.empty() && target.attribute.empty()) {
    scope_->Set(target.name, value);
    return {};
  }
  if (!target.attribute.empty()) {
    const Value* owner = scope_->Find(target.name);
    const auto* space = owner == nullptr ? nullptr : owner->As<std::shared_ptr<Namespace>>();
    if (space == nullptr) return InvalidArgument("'{}' is not a namespace", target.name);
    (*space)->attributes.Set(target.attribute, value);
    return {};
  }
  const auto items = TRY(Iterate(value, budget_));
  if (items->items.size() != target.items.size()) {
    return InvalidArgument("{} values do not fit {} names", items->items.size(),
                           target.items.size());
  }
  for (size_t i = 0; i < target.items.size(); ++i) {
    TRY(Assign(target.items[i], items->items[i]));
  }
  return {};
}

Result<Evaluator::Flow> Evaluator::Captured(const Body& body, Value& text) {
  SpannedText captured;
  SpannedText* const outer = std::exchange(out_, &captured);
  const Result<Flow> flow = Nested(body);
  out_ = outer;
  text = Value::Str(std::move(captured));
  return flow;
}

Result<Evaluator::Flow> Evaluator::FilterBlock(const Statement& statement) {
  Value text;
  const Flow flow = TRY(Captured(statement.body, text));
  if (flow != Flow::kNext) return flow;
  Value filtered;
  {
    BlockScope scope(*this, scope_);
    scope_->Set(kBlockText, text);
    filtered = TRY(Evaluate(*statement.expressions[0]));
  }
  if (statement.kind == Statement::Kind::kSetBlock) {
    TRY(AtLine(statement.line, Assign(statement.target, filtered)));
  } else {
    const Text printed = TRY(AtLine(statement.line, Str(filtered, budget_)));
    TRY(AtLine(statement.line, Emit(*printed)));
  }
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::CallBlock(const Statement& statement) {
  const Value caller = TRY(AtLine(statement.line, MakeMacro(statement)));
  const Value value = TRY(EvaluateCall(*statement.expressions[0], &caller));
  const Text text = TRY(AtLine(statement.line, Str(value, budget_)));
  TRY(AtLine(statement.line, Emit(*text)));
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::With(const Statement& statement) {
  std::vector<Value> values;
  for (const ExpressionPtr& expression : statement.expressions) {
    values.push_back(TRY(Evaluate(*expression)));
  }
  BlockScope scope(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) {
    TRY(AtLine(statement.line, Assign(statement.targets[i], values[i])));
  }
  return Execute(statement.body);
}

Result<Value> Evaluator::MakeMacro(const Statement& definition) {
  TRY(budget_.Spend(kScopeWork));
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->captured = true;
  return Value(std::make_shared<const Macro>(Macro{&definition, scope_}));
}

Result<Value> Evaluator::MakeNamespace(const Arguments& arguments) {
  const Value attributes = TRY(MakeDictFrom(arguments, budget_));
  TRY(budget_.Spend(kScopeWork));
  auto space = std::make_shared<Namespace>();
  for (const auto& [name, value] : attributes.AsDict()->items()) {
    space->attributes.Set(TRY(AsString(name, "an attribute's name"))->text(), value);
  }
  namespaces_.push_back(space);
  return Value(std::move(space));
}

}  // namespace fathom::jinja
