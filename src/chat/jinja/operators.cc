// Comparison, arithmetic and subscription of values.
#include <algorithm>
#include <cmath>

#include "chat/jinja/builtins.h"
#include "chat/jinja/text.h"
#include "chat/jinja/value.h"

namespace fathom::jinja {
namespace {

template <class T>
bool Holds(std::string_view op, const T& a, const T& b) {
  if (op == "<") return a < b;
  if (op == "<=") return a <= b;
  if (op == ">") return a > b;
  return a >= b;
}

Status TooLarge() {
  return InvalidArgument("a number is too large");
}

Status Unsupported(std::string_view op, const Value& a, const Value& b) {
  for (const Value* operand : {&a, &b}) {
    if (const Undefined* undefined = operand->As<Undefined>(); undefined && undefined->why) {
      return InvalidArgument("{}", *undefined->why);
    }
  }
  return InvalidArgument("'{}' does not go with the types '{}' and '{}'", op, TypeName(a),
                         TypeName(b));
}

Result<Value> IntPower(Int base, Int exponent) {
  Int power = 1;
  while (exponent > 0) {
    if (exponent & 1 && __builtin_mul_overflow(power, base, &power)) return TooLarge();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return TooLarge();
  }
  return Value(power);
}

Result<Value> IntBinary(std::string_view op, Int a, Int b) {
  Int result = 0;
  if (op == "+") return __builtin_add_overflow(a, b, &result) ? TooLarge() : Result(Value(result));
  if (op == "-") return __builtin_sub_overflow(a, b, &result) ? TooLarge() : Result(Value(result));
  if (op == "*") return __builtin_mul_overflow(a, b, &result) ? TooLarge() : Result(Value(result));
  if (op == "**") return IntPower(a, b);
  if (b == 0) return InvalidArgument("division by zero");
  if (b == -1) {  // the one quotient that can overflow
    if (op == "%") return Value(Int{0});
    return __builtin_sub_overflow(Int{0}, a, &result) ? TooLarge() : Result(Value(result));
  }
  const bool round_down = a % b != 0 && (a < 0) != (b < 0);
  if (op == "//") return Value(a / b - (round_down ? 1 : 0));
  return Value(a % b + (round_down ? b : 0));
}

Result<Value> FloatPower(double a, double b) {
  if (a == 0 && b < 0) return InvalidArgument("division by zero");
  const double power = std::pow(a, b);
  if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) {
    return InvalidArgument("the power of a negative number is complex");
  }
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) return TooLarge();
  return Value(power);
}

Result<Value> FloatBinary(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return FloatPower(a, b);
  if (b == 0) return InvalidArgument("division by zero");
  if (op == "/") return Value(a / b);
  // As Python: the remainder has the sign of the divisor.
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder == 0) {
    remainder = std::copysign(0.0, b);
  } else if ((b < 0) != (remainder < 0)) {
    remainder += b;
    quotient -= 1;
  }
  if (op == "%") return Value(remainder);
  if (quotient == 0) return Value(std::copysign(0.0, a / b));
  const double floor = std::floor(quotient);
  return Value(quotient - floor > 0.5 ? floor + 1 : floor);
}

Result<Value> Add(const Value& a, const Value& b, Budget& budget) {
  const SpannedText *left = a.AsText(), *right = b.AsText();
  if (left != nullptr && right != nullptr) {
    const size_t bytes = left->text().size() + right->text().size();
    const size_t spans = left->spans().size() + right->spans().size();
    TRY(budget.SpendText(bytes, spans));
    SpannedText sum;
    sum.Reserve(bytes, spans);
    sum.Append(*left);
    sum.Append(*right);
    return Value::Str(std::move(sum));
  }
  const List *head = a.AsList(), *tail = b.AsList();
  if (head == nullptr || tail == nullptr || head->is_tuple != tail->is_tuple) {
    return Unsupported("+", a, b);
  }
  TRY(budget.Spend(head->items.size() + tail->items.size()));
  std::vector<Value> items = head->items;
  items.insert(items.end(), tail->items.begin(), tail->items.end());
  return MakeList(std::move(items), head->is_tuple);
}

// A text or a list, `count` times over.
Result<Value> Repeat(const Value& value, Int count, Budget& budget) {
  const Int times = std::max(count, Int{0});
  if (times > static_cast<Int>(kMaxWork)) return budget.Spend(kMaxWork + 1);
  const size_t n = static_cast<size_t>(times);
  if (const SpannedText* text = value.AsText()) {
    TRY(budget.SpendText(text->text().size() * n, text->spans().size() * n));
    SpannedText repeated;
    repeated.Reserve(text->text().size() * n, text->spans().size());
    for (size_t i = 0; i < n; ++i) repeated.Append(*text);
    return Value::Str(std::move(repeated));
  }
  const List* list = value.AsList();
  TRY(budget.Spend(list->items.size() * n));
  std::vector<Value> items;
  for (size_t i = 0; i < n; ++i) {
    items.insert(items.end(), list->items.begin(), list->items.end());
  }
  return MakeList(std::move(items), list->is_tuple);
}

// The positions that value[begin:end:step] selects, as Python's slice.indices().
Result<std::vector<size_t>> SliceIndices(size_t length, const Value& begin, const Value& end,
                                         const Value& step, Budget& budget) {
  Int stride = 1;
  if (!step.IsNone() && !step.AsInt(stride)) return InvalidArgument("a slice takes integers");
  if (stride == 0) return InvalidArgument("a slice cannot have a step of 0");
  const Int size = static_cast<Int>(length);
  const Int low = stride < 0 ? -1 : 0, high = stride < 0 ? size - 1 : size;
  const auto bound = [&](const Value& part, Int absent) -> Result<Int> {
    Int index = absent;
    if (part.IsNone()) return index;
    if (!part.AsInt(index)) return InvalidArgument("a slice takes integers");
    if (index < 0) index = index < -size ? low : index + size;
    return std::clamp(index, low, high);
  };
  const Int first = TRY(bound(begin, stride < 0 ? high : low));
  const Int last = TRY(bound(end, stride < 0 ? low : high));
  stride = std::clamp(stride, -size - 1, size + 1);
  std::vector<size_t> indices;
  TRY(budget.Spend(length));
  for (Int i = first; stride > 0 ? i < last : i > last; i += stride) {
    indices.push_back(static_cast<size_t>(i));
  }
  return indices;
}

Result<Value> MissingItem(const Value& value, const Value& key, Budget& budget) {
  const Text name = TRY(Str(key, budget));
  if (key.AsText() != nullptr) {
    if (const auto* space = value.As<std::shared_ptr<Namespace>>()) {
      if (const Value* attribute = (*space)->attributes.Find(name->text())) return *attribute;
    }
    if (HasMethod(value, name->text())) {
      return Value(std::make_shared<const Method>(Method{value, name->text()}));
    }
  }
  return Value::Missing(
      fmt::format("a {} has no item '{}'", TypeName(value), name->text().substr(0, 80)));
}

}  // namespace

Result<bool> Equal(const Value& a, const Value& b, Budget& budget) {
  TRY(budget.Spend(1));
  Int x = 0, y = 0;
  double u = 0, v = 0;
  if (a.AsInt(x) && b.AsInt(y)) return x == y;
  if (a.AsNumber(u) && b.AsNumber(v)) return u == v;
  if (a.data().index() != b.data().index()) return false;
  if (const SpannedText* text = a.AsText()) {
    TRY(budget.Spend(text->text().size() / 16));
    return text->text() == b.AsText()->text();
  }
  if (const List* list = a.AsList()) {
    const List* other = b.AsList();
    if (list->is_tuple != other->is_tuple || list->items.size() != other->items.size()) {
      return false;
    }
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (!TRY(Equal(list->items[i], other->items[i], budget))) return false;
    }
    return true;
  }
  if (const Dict* dict = a.AsDict()) {
    if (dict->items().size() != b.AsDict()->items().size()) return false;
    for (const auto& [key, value] : dict->items()) {
      const Value* other = b.AsDict()->Find(key);
      if (other == nullptr || !TRY(Equal(value, *other, budget))) return false;
    }
    return true;
  }
  if (const Function* function = a.As<Function>()) return *function == *b.As<Function>();
  // None and undefined are equal to themselves, what is left to the same object.
  return std::visit(
      [&]<class T>(const T& x) {
        if constexpr (requires { x.use_count(); }) return x == *b.As<T>();
        return true;
      },
      a.data());
}

Result<bool> Less(const Value& a, const Value& b, Budget& budget) {
  return Compare("<", a, b, budget);
}

Result<bool> Compare(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  if (op == "==") return Equal(a, b, budget);
  if (op == "!=") return !TRY(Equal(a, b, budget));
  if (op == "in") return Contains(b, a, budget);
  if (op == "not in") return !TRY(Contains(b, a, budget));
  TRY(budget.Spend(1));
  Int x = 0, y = 0;
  double u = 0, v = 0;
  if (a.AsInt(x) && b.AsInt(y)) return Holds(op, x, y);
  if (a.AsNumber(u) && b.AsNumber(v)) return Holds(op, u, v);
  const SpannedText *left = a.AsText(), *right = b.AsText();
  if (left != nullptr && right != nullptr) {
    TRY(budget.SpendText(std::min(left->text().size(), right->text().size())));
    return Holds(op, left->text(), right->text());  // UTF-8 sorts as its code points do
  }
  const List *head = a.AsList(), *tail = b.AsList();
  if (head == nullptr || tail == nullptr || head->is_tuple != tail->is_tuple) {
    return Unsupported(op, a, b);
  }
  const size_t common = std::min(head->items.size(), tail->items.size());
  for (size_t i = 0; i < common; ++i) {
    if (TRY(Equal(head->items[i], tail->items[i], budget))) continue;
    return Compare(op, head->items[i], tail->items[i], budget);
  }
  return Holds(op, head->items.size(), tail->items.size());
}

Result<bool> Contains(const Value& container, const Value& item, Budget& budget) {
  if (const SpannedText* text = container.AsText()) {
    const SpannedText* part = item.AsText();
    if (part == nullptr) return Unsupported("in", item, container);
    TRY(budget.SpendText(*text));
    return text->text().find(part->text()) != std::string::npos;
  }
  if (const Dict* dict = container.AsDict()) {
    TRY(HashKey(item));
    return dict->Find(item) != nullptr;
  }
  if (const List* list = container.AsList()) {
    for (const Value& candidate : list->items) {
      if (TRY(Equal(candidate, item, budget))) return true;
    }
    return false;
  }
  if (container.IsUndefined()) return false;
  return InvalidArgument("a value of type '{}' contains nothing", TypeName(container));
}

Result<Value> Binary(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  Int x = 0, y = 0;
  double u = 0, v = 0;
  if (a.AsNumber(u) && b.AsNumber(v)) {
    const bool whole = a.AsInt(x) && b.AsInt(y);
    if (whole && op != "/" && !(op == "**" && y < 0)) return IntBinary(op, x, y);
    return FloatBinary(op, u, v);
  }
  if (op == "+") return Add(a, b, budget);
  if (op == "*") {
    if ((a.AsText() || a.AsList()) && b.AsInt(y)) return Repeat(a, y, budget);
    if ((b.AsText() || b.AsList()) && a.AsInt(x)) return Repeat(b, x, budget);
  }
  if (op == "%" && a.AsText() != nullptr) {
    return Unimplemented("'%' on a string is not supported; join the parts with '~'");
  }
  return Unsupported(op, a, b);
}

Result<Value> Negate(const Value& value) {
  Int number = 0;
  if (value.AsInt(number)) return IntBinary("-", 0, number);
  if (const double* real = value.As<double>()) return Value(-*real);
  return Unsupported("-", value, value);
}

Result<Value> GetItem(const Value& value, const Value& key, Budget& budget) {
  Int index = 0;
  if (const Dict* dict = value.AsDict()) {
    if (const Value* item = dict->Find(key)) return *item;
  } else if (const Undefined* undefined = value.As<Undefined>()) {
    return InvalidArgument("{}", undefined->why ? *undefined->why : "the value is undefined");
  } else if (key.AsInt(index)) {
    const List* list = value.AsList();
    const SpannedText* text = value.AsText();
    if (list != nullptr || text != nullptr) {
      const Int length = static_cast<Int>(TRY(Length(value, budget)));
      if (index < 0) index += length;
      if (index >= 0 && index < length) {
        if (list != nullptr) return list->items[static_cast<size_t>(index)];
        const size_t begin = ByteOffset(text->text(), static_cast<size_t>(index));
        size_t end = begin;
        NextCodePoint(text->text(), end);
        return Value::Str(text->Slice(begin, end));
      }
    }
  }
  return MissingItem(value, key, budget);
}

Result<Value> Slice(const Value& value, const Value& begin, const Value& end, const Value& step,
                    Budget& budget) {
  const List* list = value.AsList();
  const SpannedText* text = value.AsText();
  if (list == nullptr && text == nullptr) {
    if (const Undefined* undefined = value.As<Undefined>(); undefined && undefined->why) {
      return InvalidArgument("{}", *undefined->why);
    }
    return InvalidArgument("a value of type '{}' cannot be sliced", TypeName(value));
  }
  if (list != nullptr) {
    std::vector<Value> items;
    for (const size_t i : TRY(SliceIndices(list->items.size(), begin, end, step, budget))) {
      items.push_back(list->items[i]);
    }
    return MakeList(std::move(items), list->is_tuple);
  }
  const size_t length = TRY(Length(value, budget));
  const std::vector<size_t> indices = TRY(SliceIndices(length, begin, end, step, budget));
  if (indices.empty()) return Value::Str({});
  if (indices.back() - indices.front() + 1 == indices.size()) {
    const size_t from = ByteOffset(text->text(), indices.front());
    return Value::Str(text->Slice(from, ByteOffset(text->text(), indices.back() + 1)));
  }
  TRY(budget.Spend(kCharacterWork * length));
  const std::vector<SpannedText> characters = Characters(*text);
  SpannedText slice;
  for (const size_t i : indices) slice.Append(characters[i]);
  return Value::Str(std::move(slice));
}

}  // namespace fathom::jinja
