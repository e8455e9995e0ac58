// jinja2's filters of a list's or a mapping's items. Where jinja2 gives a generator, a list.
#include <algorithm>
#include <unordered_set>

#include "chat/jinja/builtins.h"
#include "chat/jinja/numbers.h"
#include "chat/jinja/text.h"

namespace fathom::jinja {
namespace {

// Strings in lower case when case does not matter; other values as they are.
Value SortKey(const Value& value, bool case_sensitive) {
  const SpannedText* text = value.AsText();
  return text == nullptr || case_sensitive ? value : Value::Str(MapCase(*text, Case::kLower));
}

// item.a.0.b for "a.0.b". `fallback` replaces what is undefined.
Result<Value> GetPath(Value item, const Value& path, const std::optional<Value>& fallback,
                      Budget& budget) {
  const SpannedText* text = path.AsText();
  if (text == nullptr) return GetItem(item, path, budget);
  for (const SpannedText& part : Split(*text, ".", -1, /*from_right=*/false)) {
    const bool is_index = IsAll(part.text(), Class::kDigit);
    const std::optional<Int> index = is_index ? ParseInt(part.text(), 10) : std::nullopt;
    item = TRY(GetItem(item, index ? Value(*index) : Value::Str(part), budget));
    if (fallback && item.IsUndefined()) item = *fallback;
  }
  return item;
}

// The attribute of each item that `path` names, or the items.
Result<std::vector<Value>> Attributes(const Value& input, const std::optional<Value>& path,
                                      const std::optional<Value>& fallback, Budget& budget) {
  const auto list = TRY(Iterate(input, budget));
  if (!path || path->IsNone()) return list->items;
  std::vector<Value> values;
  for (const Value& item : list->items) {
    values.push_back(TRY(GetPath(item, *path, fallback, budget)));
  }
  return values;
}

Result<Value> First(const Value& input, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  if (input.AsText() != nullptr && Truth(input)) return GetItem(input, Value(Int{0}), budget);
  const auto list = TRY(Iterate(input, budget));
  return list->items.empty() ? Value::Missing("the sequence is empty") : list->items.front();
}

Result<Value> Last(const Value& input, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  if (input.AsText() != nullptr && Truth(input)) return GetItem(input, Value(Int{-1}), budget);
  const auto list = TRY(Iterate(input, budget));
  return list->items.empty() ? Value::Missing("the sequence is empty") : list->items.back();
}

Result<Value> Items(const Value& input, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  if (input.IsUndefined()) return MakeList({});
  if (input.AsDict() == nullptr) return InvalidArgument("items needs a mapping");
  return CallMethod({input, "items"}, {}, budget);
}

Result<Value> Join(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"d", "attribute"}));
  List list;
  list.items = TRY(Attributes(input, bound[1], std::nullopt, budget));
  const Text separator = TRY(Str(bound[0].value_or(Value()), budget));
  return JoinText(*separator, list, budget);
}

Result<Value> ListFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  return MakeList(TRY(Iterate(input, budget))->items);
}

Result<Value> Map(const Value& input, const Arguments& arguments, Budget& budget) {
  if (arguments.positional.empty()) {
    const Bound bound = TRY(Bind(arguments, {"attribute", "default"}));
    if (!bound[0]) return InvalidArgument("map needs a filter or an attribute");
    std::optional<Value> fallback = bound[1];
    if (fallback && fallback->IsNone()) fallback.reset();
    return MakeList(TRY(Attributes(input, bound[0], fallback, budget)));
  }
  const SpannedText* name = TRY(AsString(arguments.positional[0], "the filter's name"));
  const Filter filter = FindFilter(name->text());
  if (filter == nullptr) return Unimplemented("there is no filter '{}'", name->text());
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()},
                       arguments.named};
  std::vector<Value> mapped;
  for (const Value& item : TRY(Attributes(input, std::nullopt, std::nullopt, budget))) {
    mapped.push_back(TRY(filter(item, rest, budget)));
  }
  return MakeList(std::move(mapped));
}

// select, reject, selectattr and rejectattr.
template <bool keep, bool by_attribute>
Result<Value> Select(const Value& input, const Arguments& arguments, Budget& budget) {
  std::vector<Value> selected;
  if (!Truth(input)) return MakeList({});
  const size_t skip = by_attribute ? 1 : 0;
  const std::vector<Value>& given = arguments.positional;
  if (given.size() < skip) return InvalidArgument("an attribute is needed");
  Test test = nullptr;
  Arguments rest{{}, arguments.named};
  if (given.size() > skip) {
    const SpannedText* name = TRY(AsString(given[skip], "the test's name"));
    test = FindTest(name->text());
    if (test == nullptr) return Unimplemented("there is no test '{}'", name->text());
    rest.positional.assign(given.begin() + static_cast<ptrdiff_t>(skip) + 1, given.end());
  }
  const auto list = TRY(Iterate(input, budget));
  for (const Value& item : list->items) {
    const Value subject = by_attribute ? TRY(GetPath(item, given[0], std::nullopt, budget)) : item;
    const bool passes = test != nullptr ? TRY(test(subject, rest, budget)) : Truth(subject);
    if (passes == keep) selected.push_back(item);
  }
  return MakeList(std::move(selected));
}

template <bool largest>
Result<Value> Extreme(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"case_sensitive", "attribute"}));
  const auto list = TRY(Iterate(input, budget));
  if (list->items.empty()) return Value::Missing("the sequence is empty");
  const std::vector<Value> keys = TRY(Attributes(input, bound[1], std::nullopt, budget));
  size_t best = 0;
  Value best_key = SortKey(keys[0], Flag(bound[0]));
  for (size_t i = 1; i < keys.size(); ++i) {
    const Value key = SortKey(keys[i], Flag(bound[0]));
    const bool better =
        largest ? TRY(Less(best_key, key, budget)) : TRY(Less(key, best_key, budget));
    if (!better) continue;
    best = i;
    best_key = key;
  }
  return list->items[best];
}

// `items` in the order of `keys`, which are lists compared one after the other.
Result<Value> Sorted(const std::vector<Value>& items, const std::vector<Value>& keys, bool reverse,
                     Budget& budget) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Status error;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!error.ok()) return false;
    const Result<bool> less = Less(keys[reverse ? b : a], keys[reverse ? a : b], budget);
    if (!less.ok()) error = less.status();
    return less.ok() && *less;
  });
  TRY(error);
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return MakeList(std::move(sorted));
}

Result<Value> Sort(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"reverse", "case_sensitive", "attribute"}));
  const auto list = TRY(Iterate(input, budget));
  std::vector<SpannedText> paths;
  if (bound[2] && bound[2]->AsText() != nullptr) paths = Split(*bound[2]->AsText(), ",", -1, false);
  std::vector<Value> keys;
  for (const Value& item : list->items) {
    std::vector<Value> key;
    for (const SpannedText& path : paths) {
      key.push_back(TRY(GetPath(item, Value::Str(path), std::nullopt, budget)));
    }
    if (paths.empty()) {
      const bool by_index = bound[2] && !bound[2]->IsNone();
      key.push_back(by_index ? TRY(GetPath(item, *bound[2], std::nullopt, budget)) : item);
    }
    for (Value& part : key) part = SortKey(part, Flag(bound[1]));
    keys.push_back(TRY(MakeList(std::move(key))));
  }
  return Sorted(list->items, keys, Flag(bound[0]), budget);
}

Result<Value> DictSort(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"case_sensitive", "by", "reverse"}));
  const std::string by = bound[1] ? TRY(AsString(*bound[1], "by"))->text() : std::string("key");
  if (by != "key" && by != "value") return InvalidArgument("dictsort sorts by key or by value");
  if (input.AsDict() == nullptr) return InvalidArgument("dictsort needs a mapping");
  const Value pairs = TRY(CallMethod({input, "items"}, {}, budget));
  std::vector<Value> keys;
  for (const Value& pair : pairs.AsList()->items) {
    keys.push_back(SortKey(pair.AsList()->items[by == "key" ? 0 : 1], Flag(bound[0])));
  }
  return Sorted(pairs.AsList()->items, keys, Flag(bound[2]), budget);
}

Result<Value> Sum(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"attribute", "start"}));
  Value sum = bound[1].value_or(Value(Int{0}));
  if (sum.AsText() != nullptr) return InvalidArgument("sum cannot add strings; use join");
  for (const Value& item : TRY(Attributes(input, bound[0], std::nullopt, budget))) {
    sum = TRY(Binary("+", sum, item, budget));
  }
  return sum;
}

Result<Value> Unique(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"case_sensitive", "attribute"}));
  const auto list = TRY(Iterate(input, budget));
  const std::vector<Value> keys = TRY(Attributes(input, bound[1], std::nullopt, budget));
  std::unordered_set<std::string> seen;
  std::vector<Value> unique;
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string key = TRY(HashKey(SortKey(keys[i], Flag(bound[0]))));
    if (seen.insert(key).second) unique.push_back(list->items[i]);
  }
  return MakeList(std::move(unique));
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"dictsort", DictSort},
    {"first", First},
    {"items", Items},
    {"join", Join},
    {"last", Last},
    {"list", ListFilter},
    {"map", Map},
    {"max", Extreme<true>},
    {"min", Extreme<false>},
    {"reject", Select<false, false>},
    {"rejectattr", Select<false, true>},
    {"select", Select<true, false>},
    {"selectattr", Select<true, true>},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

}  // namespace

Filter FindListFilter(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  return nullptr;
}

}  // namespace fathom::jinja
