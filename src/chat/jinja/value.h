// The values of a template: Python's, as far as chat templates need them.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/spanned_text.h"
#include "base/status.h"
#include "chat/jinja/budget.h"
#include "chat/jinja/named_values.h"

namespace fathom::jinja {

class Dict;
class Value;
struct List;
struct Loop;       // evaluator.h
struct Macro;      // evaluator.h
struct Namespace;  // below
struct Method;     // below

__extension__ using Int = __int128;  // more is refused; Python's have no bound
// Where it stands, or every value would take its alignment, and 32 bytes.
struct [[gnu::packed, gnu::aligned(8)]] Integer {
  Int value;
};
using Text = std::shared_ptr<const SpannedText>;

struct Undefined {
  std::shared_ptr<const std::string> why;
};
struct None {};
enum class Function { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

// Cheap to copy: what is large is shared.
class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, Integer, double, Text, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<Loop>,
                   std::shared_ptr<const Macro>, std::shared_ptr<const Method>, Function>;

  Value() = default;  // undefined
  template <class T>
  requires(!std::same_as<T, Value>) explicit Value(T data)
      : data_(std::in_place_type<T>, std::move(data)) {}
  explicit Value(Int number) : data_(Integer{number}) {}
  static Value Str(SpannedText text);
  static Value Str(std::string_view text, bool trusted);
  static Value Missing(std::string why);  // undefined, and why

  template <class T>
  const T* As() const {
    return std::get_if<T>(&data_);
  }
  bool IsUndefined() const { return As<Undefined>() != nullptr; }
  bool IsNone() const { return As<None>() != nullptr; }
  // Null unless the value is one.
  const SpannedText* AsText() const { return Pointee<Text>(); }
  const List* AsList() const { return Pointee<std::shared_ptr<const List>>(); }
  const Dict* AsDict() const { return Pointee<std::shared_ptr<const Dict>>(); }
  bool AsInt(Int& number) const;        // a bool is one too
  bool AsNumber(double& number) const;  // an int, bool or float
  const Data& data() const { return data_; }

 private:
  template <class Pointer>
  const typename Pointer::element_type* Pointee() const {
    const Pointer* pointer = As<Pointer>();
    return pointer == nullptr ? nullptr : pointer->get();
  }
  Data data_;
};

// A list or a tuple. Immutable once made.
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;  // of lists, tuples and dicts within each other
};

// Keys in the order they were first set. Immutable once made.
class Dict {
 public:
  void Reserve(size_t items) { items_.reserve(items); }
  // An error if the key cannot be one.
  Status Set(const Value& key, Value value);
  // Null if absent. A key that cannot be one is absent.
  const Value* Find(const Value& key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  int depth() const { return depth_; }

 private:
  std::optional<size_t> Place(const Value& key, const std::string& hash_key) const;

  std::vector<std::pair<Value, Value>> items_;
  NameIndex index_;  // of HashKeys
  int depth_ = 1;
};

struct Namespace {
  NamedValues<Value> attributes;
};

// `value.name`, not called yet.
struct Method {
  Value self;
  std::string name;
};

// Equal strings for values that are equal keys in Python (1, 1.0 and True are); an error for what
// cannot be hashed.
Result<std::string> HashKey(const Value& value);
// Errors if the nesting becomes too deep.
Result<Value> MakeList(std::vector<Value> items, bool is_tuple = false);
Result<Value> MakeDict(Dict dict);
int Depth(const Value& value);
int LoopDepth(const Loop& loop);

std::string_view TypeName(const Value& value);  // as Python calls it
bool Truth(const Value& value);
Result<size_t> Length(const Value& value, Budget& budget);
// What a for loop over it sees.
Result<std::shared_ptr<const List>> Iterate(const Value& value, Budget& budget);

// str(), repr() and json.dumps(). Text made from anything but a string is untrusted.
Result<Text> Str(const Value& value, Budget& budget);
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  int indent = -1;  // spaces; none when negative
  std::string item_separator = ", ", key_separator = ": ";
};
Result<Text> ToJson(const Value& value, const JsonStyle& style, Budget& budget);
std::string IntRepr(Int number);
std::string FloatRepr(double number);

Result<bool> Equal(const Value& a, const Value& b, Budget& budget);
// a < b; an error for values without an order.
Result<bool> Less(const Value& a, const Value& b, Budget& budget);
// "==", "!=", "<", "<=", ">", ">=", "in", "not in".
Result<bool> Compare(std::string_view op, const Value& a, const Value& b, Budget& budget);
Result<bool> Contains(const Value& container, const Value& item, Budget& budget);

// "+", "-", "*", "/", "//", "%", "**".
Result<Value> Binary(std::string_view op, const Value& a, const Value& b, Budget& budget);
Result<Value> Negate(const Value& value);
// value[key]; undefined where there is none.
Result<Value> GetItem(const Value& value, const Value& key, Budget& budget);
// value[begin:end:step]; an absent part is none.
Result<Value> Slice(const Value& value, const Value& begin, const Value& end, const Value& step,
                    Budget& budget);

}  // namespace fathom::jinja
