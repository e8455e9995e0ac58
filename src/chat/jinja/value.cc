#include "chat/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "chat/jinja/text.h"

namespace fathom::jinja {

Value Value::Str(SpannedText text) {
  return Value(std::make_shared<const SpannedText>(std::move(text)));
}

Value Value::Str(std::string_view text, bool trusted) {
  return Str(SpannedText(text, trusted));
}

Value Value::Missing(std::string why) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
}

bool Value::AsInt(Int& number) const {
  if (const Integer* integer = As<Integer>()) {
    number = integer->value;
  } else if (const bool* value = As<bool>()) {
    number = *value;
  } else {
    return false;
  }
  return true;
}

bool Value::AsNumber(double& number) const {
  Int integer = 0;
  if (AsInt(integer)) {
    number = static_cast<double>(integer);
  } else if (const double* value = As<double>()) {
    number = *value;
  } else {
    return false;
  }
  return true;
}

std::optional<size_t> Dict::Place(const Value& key, const std::string& hash_key) const {
  if (items_.size() > NameIndex::kFew) return index_.Find(hash_key);
  const SpannedText* text = key.AsText();
  for (size_t i = 0; i < items_.size(); ++i) {
    const SpannedText* known = items_[i].first.AsText();
    if (text != nullptr || known != nullptr) {
      if (text != nullptr && known != nullptr && text->text() == known->text()) return i;
    } else if (*HashKey(items_[i].first) == hash_key) {
      return i;
    }
  }
  return std::nullopt;
}

Status Dict::Set(const Value& key, Value value) {
  std::string hash_key = TRY(HashKey(key));
  depth_ = std::max({depth_, Depth(key) + 1, Depth(value) + 1});
  if (const std::optional<size_t> place = Place(key, hash_key)) {
    items_[*place].second = std::move(value);
    return {};
  }
  items_.emplace_back(key, std::move(value));
  if (items_.size() == NameIndex::kFew + 1) {
    for (size_t i = 0; i < NameIndex::kFew; ++i) index_.Add(*HashKey(items_[i].first), i);
  }
  if (items_.size() > NameIndex::kFew) index_.Add(std::move(hash_key), items_.size() - 1);
  return {};
}

const Value* Dict::Find(const Value& key) const {
  const Result<std::string> hash_key = HashKey(key);
  if (!hash_key.ok()) return nullptr;
  const std::optional<size_t> place = Place(key, *hash_key);
  return place ? &items_[*place].second : nullptr;
}

Result<std::string> HashKey(const Value& value) {
  Int integer = 0;
  if (const SpannedText* text = value.AsText()) return "s" + text->text();
  if (value.AsInt(integer)) return "i" + IntRepr(integer);
  if (value.IsNone()) return std::string("n");
  if (value.IsUndefined()) return std::string("u");
  if (const double* number = value.As<double>()) {
    if (std::trunc(*number) == *number && std::abs(*number) < 0x1p126) {
      return "i" + IntRepr(static_cast<Int>(*number));
    }
    return "f" + FloatRepr(*number);
  }
  if (const List* list = value.AsList(); list != nullptr && list->is_tuple) {
    std::string key = "t";
    for (const Value& item : list->items) {
      const std::string part = TRY(HashKey(item));
      key += fmt::format("{}:", part.size()) + part;
    }
    return key;
  }
  return InvalidArgument("unhashable type: '{}'", TypeName(value));
}

int Depth(const Value& value) {
  if (const List* list = value.AsList()) return list->depth;
  if (const Dict* dict = value.AsDict()) return dict->depth();
  if (const auto* method = value.As<std::shared_ptr<const Method>>()) {
    return Depth((*method)->self) + 1;
  }
  if (const auto* loop = value.As<std::shared_ptr<Loop>>()) return LoopDepth(**loop);
  return 0;
}

namespace {
Status CheckDepth(int depth) {
  if (depth <= kMaxValueDepth) return {};
  return ResourceExhausted("lists and dicts nest more than {} deep", kMaxValueDepth);
}
}  // namespace

Result<Value> MakeList(std::vector<Value> items, bool is_tuple) {
  List list{std::move(items), is_tuple, 1};
  for (const Value& item : list.items) list.depth = std::max(list.depth, Depth(item) + 1);
  TRY(CheckDepth(list.depth));
  return Value(std::make_shared<const List>(std::move(list)));
}

Result<Value> MakeDict(Dict dict) {
  TRY(CheckDepth(dict.depth()));
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

std::string_view TypeName(const Value& value) {
  const List* list = value.AsList();
  if (list != nullptr && list->is_tuple) return "tuple";
  static constexpr std::string_view kNames[] = {
      "Undefined", "NoneType",  "bool",        "int",   "float",  "str",     "list",
      "dict",      "Namespace", "LoopContext", "Macro", "method", "function"};
  static_assert(std::size(kNames) == std::variant_size_v<Value::Data>);
  return kNames[value.data().index()];
}

bool Truth(const Value& value) {
  double number = 0;
  if (value.AsNumber(number)) return number != 0;
  if (const SpannedText* text = value.AsText()) return !text->text().empty();
  if (const List* list = value.AsList()) return !list->items.empty();
  if (const Dict* dict = value.AsDict()) return !dict->items().empty();
  return !value.IsUndefined() && !value.IsNone();
}

Result<size_t> Length(const Value& value, Budget& budget) {
  if (const SpannedText* text = value.AsText()) {
    TRY(budget.SpendText(*text));
    return CodePoints(text->text());
  }
  if (const List* list = value.AsList()) return list->items.size();
  if (const Dict* dict = value.AsDict()) return dict->items().size();
  if (value.IsUndefined()) return size_t{0};
  return InvalidArgument("a value of type '{}' has no length", TypeName(value));
}

Result<std::shared_ptr<const List>> Iterate(const Value& value, Budget& budget) {
  if (const auto* list = value.As<std::shared_ptr<const List>>()) {
    TRY(budget.Spend((*list)->items.size()));
    return *list;
  }
  List list;
  if (const Dict* dict = value.AsDict()) {
    TRY(budget.Spend(dict->items().size()));
    for (const auto& [key, item] : dict->items()) list.items.push_back(key);
    list.depth = dict->depth();
  } else if (const SpannedText* text = value.AsText()) {
    TRY(budget.Spend(kCharacterWork * text->text().size()));
    for (SpannedText& c : Characters(*text)) list.items.push_back(Value::Str(std::move(c)));
  } else if (!value.IsUndefined()) {
    return InvalidArgument("a value of type '{}' is not iterable", TypeName(value));
  }
  return std::make_shared<const List>(std::move(list));
}

}  // namespace fathom::jinja
