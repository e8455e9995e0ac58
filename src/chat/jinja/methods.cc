// Methods of str, dict, list and tuple; and the functions.
#include <algorithm>
#include <ctime>

#include "chat/jinja/builtins.h"
#include "chat/jinja/text.h"

namespace fathom::jinja {
namespace {

using TextMethod = Result<Value> (*)(const SpannedText& self, const Arguments& arguments,
                                     Budget& budget);

Result<Value> Strings(std::vector<SpannedText> texts, bool is_tuple = false) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (SpannedText& text : texts) items.push_back(Value::Str(std::move(text)));
  return MakeList(std::move(items), is_tuple);
}

Value Index(size_t byte, const SpannedText& text) {
  if (byte == std::string::npos) return Value(Int{-1});
  return Value(static_cast<Int>(CodePoints(std::string_view(text.text()).substr(0, byte))));
}

bool Given(const std::optional<Value>& argument) {
  return argument.has_value() && !argument->IsNone();
}

template <Side side>
Result<Value> StripMethod(const SpannedText& self, const Arguments& arguments, Budget&) {
  const Bound bound = TRY(Bind(arguments, {"chars"}));
  if (!Given(bound[0])) return Value::Str(Strip(self, side, std::nullopt));
  return Value::Str(Strip(self, side, TRY(AsString(*bound[0], "the characters"))->text()));
}

template <bool from_right>
Result<Value> SplitMethod(const SpannedText& self, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"sep", "maxsplit"}));
  std::optional<std::string_view> separator;
  if (Given(bound[0])) {
    separator = TRY(AsString(*bound[0], "the separator"))->text();
    if (separator->empty()) return InvalidArgument("split() needs a separator that is not empty");
  }
  const Int max = bound[1] ? TRY(AsInteger(*bound[1], "maxsplit")) : Int{-1};
  const Int limit = std::min(max, static_cast<Int>(self.text().size() + 1));
  std::vector<SpannedText> pieces =
      Split(self, separator, limit < 0 ? -1 : static_cast<int64_t>(limit), from_right);
  TRY(budget.Spend(kCharacterWork * pieces.size()));
  return Strings(std::move(pieces));
}

Result<Value> SplitLinesMethod(const SpannedText& self, const Arguments& arguments,
                               Budget& budget) {
  TRY(Bind(arguments, {}));
  std::vector<SpannedText> lines = SplitLines(self);
  TRY(budget.Spend(kCharacterWork * lines.size()));
  return Strings(std::move(lines));
}

template <bool from_right>
Result<Value> PartitionMethod(const SpannedText& self, const Arguments& arguments, Budget&) {
  const Bound bound = TRY(Bind(arguments, {"sep"}));
  const std::string& separator = TRY(AsString(bound[0].value_or(Value()), "the separator"))->text();
  if (separator.empty()) return InvalidArgument("partition() needs a separator");
  const size_t size = self.text().size();
  const size_t at = from_right ? self.text().rfind(separator) : self.text().find(separator);
  if (at == std::string::npos) {
    if (from_right) return Strings({{}, {}, self}, /*is_tuple=*/true);
    return Strings({self, {}, {}}, /*is_tuple=*/true);
  }
  const size_t end = at + separator.size();
  return Strings({self.Slice(0, at), self.Slice(at, end), self.Slice(end, size)},
                 /*is_tuple=*/true);
}

Result<Value> ReplaceMethod(const SpannedText& self, const Arguments& arguments, Budget& budget) {
  return ReplaceText(self, arguments, budget);
}

template <bool at_end>
Result<bool> HasAffix(const SpannedText& self, const Value& affix) {
  if (const List* list = affix.AsList(); list != nullptr && list->is_tuple) {
    for (const Value& item : list->items) {
      if (TRY(HasAffix<at_end>(self, item))) return true;
    }
    return false;
  }
  const std::string& text = TRY(AsString(affix, "what to look for"))->text();
  return at_end ? self.text().ends_with(text) : self.text().starts_with(text);
}

template <bool at_end>
Result<Value> AffixMethod(const SpannedText& self, const Arguments& arguments, Budget&) {
  const Bound bound = TRY(Bind(arguments, {"affix"}));
  return Value(TRY(HasAffix<at_end>(self, bound[0].value_or(Value()))));
}

template <bool at_end>
Result<Value> RemoveAffixMethod(const SpannedText& self, const Arguments& arguments, Budget&) {
  const Bound bound = TRY(Bind(arguments, {"affix"}));
  const Value affix = bound[0].value_or(Value());
  const size_t size = self.text().size();
  const size_t cut = TRY(AsString(affix, "what to remove"))->text().size();
  if (!TRY(HasAffix<at_end>(self, affix))) return Value::Str(self);
  return Value::Str(at_end ? self.Slice(0, size - cut) : self.Slice(cut, size));
}

template <Case to>
Result<Value> CaseMethod(const SpannedText& self, const Arguments& arguments, Budget&) {
  TRY(Bind(arguments, {}));
  return Value::Str(MapCase(self, to));
}

template <Class of>
Result<Value> ClassMethod(const SpannedText& self, const Arguments& arguments, Budget&) {
  TRY(Bind(arguments, {}));
  return Value(IsAll(self.text(), of));
}

template <bool from_right, bool must_exist>
Result<Value> FindMethod(const SpannedText& self, const Arguments& arguments, Budget&) {
  const Bound bound = TRY(Bind(arguments, {"sub"}));
  const std::string& part = TRY(AsString(bound[0].value_or(Value()), "what to find"))->text();
  const size_t at = from_right ? self.text().rfind(part) : self.text().find(part);
  if (must_exist && at == std::string::npos) return InvalidArgument("substring not found");
  return Index(at, self);
}

Result<Value> CountMethod(const SpannedText& self, const Arguments& arguments, Budget&) {
  const Bound bound = TRY(Bind(arguments, {"sub"}));
  const std::string& part = TRY(AsString(bound[0].value_or(Value()), "what to count"))->text();
  return Value(static_cast<Int>(CountReplacements(self.text(), part, -1)));
}

Result<Value> JoinMethod(const SpannedText& self, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"iterable"}));
  const auto list = TRY(Iterate(bound[0].value_or(Value(None{})), budget));
  for (const Value& item : list->items) TRY(AsString(item, "each item to join"));
  return JoinText(self, *list, budget);
}

constexpr std::pair<std::string_view, TextMethod> kTextMethods[] = {
    {"capitalize", CaseMethod<Case::kCapitalize>},
    {"count", CountMethod},
    {"endswith", AffixMethod<true>},
    {"find", FindMethod<false, false>},
    {"index", FindMethod<false, true>},
    {"isalnum", ClassMethod<Class::kAlnum>},
    {"isalpha", ClassMethod<Class::kAlpha>},
    {"isdigit", ClassMethod<Class::kDigit>},
    {"islower", ClassMethod<Class::kLower>},
    {"isspace", ClassMethod<Class::kSpace>},
    {"isupper", ClassMethod<Class::kUpper>},
    {"join", JoinMethod},
    {"lower", CaseMethod<Case::kLower>},
    {"lstrip", StripMethod<Side::kLeft>},
    {"partition", PartitionMethod<false>},
    {"removeprefix", RemoveAffixMethod<false>},
    {"removesuffix", RemoveAffixMethod<true>},
    {"replace", ReplaceMethod},
    {"rfind", FindMethod<true, false>},
    {"rindex", FindMethod<true, true>},
    {"rpartition", PartitionMethod<true>},
    {"rsplit", SplitMethod<true>},
    {"rstrip", StripMethod<Side::kRight>},
    {"split", SplitMethod<false>},
    {"splitlines", SplitLinesMethod},
    {"startswith", AffixMethod<false>},
    {"strip", StripMethod<Side::kBoth>},
    {"title", CaseMethod<Case::kTitle>},
    {"upper", CaseMethod<Case::kUpper>},
};

Result<Value> CallDictMethod(const Dict& self, std::string_view name, const Arguments& arguments,
                             Budget& budget) {
  if (name == "get") {
    const Bound bound = TRY(Bind(arguments, {"key", "default"}));
    const Value key = bound[0].value_or(Value());
    TRY(HashKey(key));
    const Value* value = self.Find(key);
    return value != nullptr ? *value : bound[1].value_or(Value(None{}));
  }
  TRY(Bind(arguments, {}));
  TRY(budget.Spend(self.items().size()));
  std::vector<Value> items;
  for (const auto& [key, value] : self.items()) {
    items.push_back(name == "keys"     ? key
                    : name == "values" ? value
                                       : TRY(MakeList({key, value}, /*is_tuple=*/true)));
  }
  return MakeList(std::move(items));
}

Result<Value> CallListMethod(const List& self, std::string_view name, const Arguments& arguments,
                             Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"value"}));
  Int count = 0;
  for (size_t i = 0; i < self.items.size(); ++i) {
    if (!TRY(Equal(self.items[i], bound[0].value_or(Value()), budget))) continue;
    if (name == "index") return Value(static_cast<Int>(i));
    ++count;
  }
  if (name == "index") return InvalidArgument("the value is not in the list");
  return Value(count);
}

}  // namespace

Result<Bound> Bind(const Arguments& arguments, std::initializer_list<std::string_view> parameters) {
  if (arguments.positional.size() > parameters.size()) {
    return InvalidArgument("at most {} arguments are taken, {} given", parameters.size(),
                           arguments.positional.size());
  }
  Bound bound(arguments.positional.begin(), arguments.positional.end());
  bound.resize(parameters.size());
  for (const auto& [name, value] : arguments.named) {
    const auto* at = std::find(parameters.begin(), parameters.end(), name);
    if (at == parameters.end()) return InvalidArgument("there is no argument '{}'", name);
    std::optional<Value>& slot = bound[static_cast<size_t>(at - parameters.begin())];
    if (slot.has_value()) return InvalidArgument("the argument '{}' is given twice", name);
    slot = value;
  }
  return bound;
}

Result<Int> AsInteger(const Value& value, std::string_view what) {
  Int number = 0;
  if (value.AsInt(number)) return number;
  return InvalidArgument("{} must be an integer, not '{}'", what, TypeName(value));
}

Result<const SpannedText*> AsString(const Value& value, std::string_view what) {
  if (const SpannedText* text = value.AsText()) return text;
  return InvalidArgument("{} must be a string, not '{}'", what, TypeName(value));
}

Result<Value> ReplaceText(const SpannedText& text, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"old", "new", "count"}));
  const SpannedText& from = *TRY(AsString(bound[0].value_or(Value()), "what to replace"));
  const SpannedText& to = *TRY(AsString(bound[1].value_or(Value()), "the replacement"));
  Int count = Given(bound[2]) ? TRY(AsInteger(*bound[2], "the count")) : Int{-1};
  count = std::min(count, static_cast<Int>(text.text().size() + 1));
  const int64_t max = count < 0 ? -1 : static_cast<int64_t>(count);
  const size_t times = CountReplacements(text.text(), from.text(), max);
  TRY(budget.SpendText(text.text().size() + times * to.text().size(),
                       text.spans().size() + times * (to.spans().size() + 1)));
  return Value::Str(Replace(text, from.text(), to, max));
}

Result<Value> JoinText(const SpannedText& separator, const List& list, Budget& budget) {
  SpannedText joined;
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) {
      TRY(budget.SpendText(separator));
      joined.Append(separator);
    }
    const Text text = TRY(Str(list.items[i], budget));
    TRY(budget.SpendText(*text));
    joined.Append(*text);
  }
  return Value::Str(std::move(joined));
}

bool HasMethod(const Value& self, std::string_view name) {
  if (self.AsText() != nullptr) {
    return std::any_of(std::begin(kTextMethods), std::end(kTextMethods),
                       [&](const auto& method) { return method.first == name; });
  }
  if (self.AsDict() != nullptr) {
    return name == "get" || name == "items" || name == "keys" || name == "values";
  }
  return self.AsList() != nullptr && (name == "index" || name == "count");
}

Result<Value> CallMethod(const Method& method, const Arguments& arguments, Budget& budget) {
  if (const Dict* dict = method.self.AsDict()) {
    return CallDictMethod(*dict, method.name, arguments, budget);
  }
  if (const List* list = method.self.AsList()) {
    return CallListMethod(*list, method.name, arguments, budget);
  }
  const SpannedText* text = method.self.AsText();
  CHECK(text != nullptr, "a method of a {}", TypeName(method.self));
  TRY(budget.SpendText(*text));
  for (const auto& [name, call] : kTextMethods) {
    if (name == method.name) return call(*text, arguments, budget);
  }
  CHECK(false, "no method {}", method.name);
}

Result<Value> MakeRange(const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"start", "stop", "step"}));
  if (!bound[0]) return InvalidArgument("range() needs an integer");
  Int begin = 0, end = TRY(AsInteger(*bound[0], "range()'s argument")), step = 1;
  if (bound[1]) {
    begin = end;
    end = TRY(AsInteger(*bound[1], "range()'s argument"));
  }
  if (bound[2]) step = TRY(AsInteger(*bound[2], "range()'s step"));
  if (step == 0) return InvalidArgument("range() cannot have a step of 0");
  std::vector<Value> items;
  for (Int i = begin; step > 0 ? i < end : i > end;) {
    if (items.size() == kMaxRangeItems) {
      return ResourceExhausted("range() makes more than {} items", kMaxRangeItems);
    }
    items.push_back(Value(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  TRY(budget.Spend(items.size()));
  return MakeList(std::move(items));
}

Result<Value> MakeDictFrom(const Arguments& arguments, Budget& budget) {
  Dict dict;
  if (arguments.positional.size() > 1) return InvalidArgument("dict() takes at most one argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const Dict* other = source.AsDict()) {
      for (const auto& [key, value] : other->items()) TRY(dict.Set(key, value));
    } else if (source.IsUndefined()) {
      return GetItem(source, Value(), budget).status();  // the error that it is
    } else {
      const auto pairs = TRY(Iterate(source, budget));
      for (const Value& pair : pairs->items) {
        const auto entry = TRY(Iterate(pair, budget));
        if (entry->items.size() != 2) return InvalidArgument("dict() takes pairs");
        TRY(dict.Set(entry->items[0], entry->items[1]));
      }
    }
    TRY(budget.Spend(kCharacterWork * dict.items().size()));
  }
  for (const auto& [name, value] : arguments.named) {
    TRY(dict.Set(Value::Str(name, /*trusted=*/true), value));
  }
  return MakeDict(std::move(dict));
}

Result<Value> StrftimeNow(const Arguments& arguments) {
  const Bound bound = TRY(Bind(arguments, {"format"}));
  const std::string& format = TRY(AsString(bound[0].value_or(Value()), "the format"))->text();
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[256];
  const size_t size = format.empty() ? 0 : strftime(buffer, sizeof(buffer), format.c_str(), &local);
  if (size == 0 && !format.empty()) {
    return InvalidArgument("strftime_now() makes nothing, or more than {} bytes", sizeof(buffer));
  }
  return Value::Str(std::string_view(buffer, size), /*trusted=*/false);
}

}  // namespace fathom::jinja
