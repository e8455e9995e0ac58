// jinja2's filters of one value, text or number, and tojson as transformers defines it.
// list_filters.cc has those of many.
#include <algorithm>
#include <cmath>

#include "chat/jinja/builtins.h"
#include "chat/jinja/numbers.h"
#include "chat/jinja/text.h"

namespace fathom::jinja {
namespace {

Result<Value> Abs(const Value& input, const Arguments& arguments, Budget&) {
  TRY(Bind(arguments, {}));
  double number = 0;
  if (!input.AsNumber(number)) return InvalidArgument("abs needs a number");
  Int integer = 0;
  if (input.AsInt(integer)) return integer < 0 ? Negate(input) : Value(integer);
  return Value(std::abs(number));
}

template <Case to>
Result<Value> CaseFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  return Value::Str(MapCase(*TRY(Str(input, budget)), to));
}

Result<Value> LengthFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  return Value(static_cast<Int>(TRY(Length(input, budget))));
}

Result<Value> Default(const Value& input, const Arguments& arguments, Budget&) {
  const Bound bound = TRY(Bind(arguments, {"default_value", "boolean"}));
  if (!input.IsUndefined() && (!Flag(bound[1]) || Truth(input))) return input;
  return bound[0].value_or(Value::Str({}));
}

Result<Value> ToFloat(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"default"}));
  double number = 0;
  if (input.AsNumber(number)) return Value(number);
  if (input.IsUndefined()) return GetItem(input, Value(), budget);
  std::optional<double> parsed;
  if (const SpannedText* text = input.AsText()) parsed = ParseFloat(text->text());
  return parsed ? Value(*parsed) : bound[0].value_or(Value(0.0));
}

Result<Value> TruncateToInt(double number, const Value& fallback) {
  if (std::isnan(number)) return fallback;
  if (std::abs(number) >= 0x1p126) return InvalidArgument("a number is too large");
  return Value(static_cast<Int>(number));
}

Result<Value> ToInt(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"default", "base"}));
  const Value fallback = bound[0].value_or(Value(Int{0}));
  const Int base = bound[1] ? TRY(AsInteger(*bound[1], "the base")) : Int{10};
  Int integer = 0;
  if (input.AsInt(integer)) return Value(integer);
  if (const double* number = input.As<double>()) return TruncateToInt(*number, fallback);
  if (input.IsUndefined()) return GetItem(input, Value(), budget);  // the error that it is
  const SpannedText* text = input.AsText();
  if (text == nullptr) return fallback;
  if (const std::optional<Int> parsed = ParseInt(text->text(), base)) return Value(*parsed);
  const std::optional<double> number = ParseFloat(text->text());
  if (!number || std::isinf(*number)) return fallback;
  return TruncateToInt(*number, fallback);
}

Result<Value> Indent(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"width", "first", "blank"}));
  SpannedText text = *TRY(AsString(input, "what to indent"));
  SpannedText indent("    ", /*trusted=*/true);
  if (bound[0] && bound[0]->AsText() != nullptr) {
    indent = *bound[0]->AsText();
  } else if (bound[0]) {
    const Int width = TRY(AsInteger(*bound[0], "the width"));
    if (width > 1000) return InvalidArgument("an indent is at most 1000 characters");
    indent = SpannedText(std::string(static_cast<size_t>(std::max(width, Int{0})), ' '), true);
  }
  text.Append("\n", true);  // so that a trailing line end gives a last, empty line
  const std::vector<SpannedText> lines = SplitLines(text);
  TRY(budget.SpendText(text.text().size() + lines.size() * (indent.text().size() + 1),
                       text.spans().size() + lines.size() * (indent.spans().size() + 1)));
  SpannedText result;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result.Append("\n", true);
    const bool wanted = i > 0 ? Flag(bound[2]) || !lines[i].text().empty() : Flag(bound[1]);
    if (wanted) result.Append(indent);
    result.Append(lines[i]);
  }
  return Value::Str(std::move(result));
}

Result<Value> ReplaceFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  Bound bound = TRY(Bind(arguments, {"old", "new", "count"}));
  Arguments strings;
  for (size_t i = 0; i < 2; ++i) {
    if (!bound[i]) return InvalidArgument("replace needs what to replace, and with what");
    strings.positional.push_back(Value(TRY(Str(*bound[i], budget))));
  }
  if (bound[2]) strings.positional.push_back(*bound[2]);
  const Text text = TRY(Str(input, budget));
  TRY(budget.SpendText(*text));
  return ReplaceText(*text, strings, budget);
}

Result<Value> Reverse(const Value& input, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  if (const SpannedText* text = input.AsText()) {
    TRY(budget.Spend(kCharacterWork * text->text().size()));
    return Value::Str(Reversed(*text));
  }
  const auto list = TRY(Iterate(input, budget));
  return MakeList({list->items.rbegin(), list->items.rend()});
}

Result<Value> Round(const Value& input, const Arguments& arguments, Budget&) {
  const Bound bound = TRY(Bind(arguments, {"precision", "method"}));
  const Int digits = bound[0] ? TRY(AsInteger(*bound[0], "the precision")) : Int{0};
  const std::string method =
      bound[1] ? TRY(AsString(*bound[1], "the method"))->text() : std::string("common");
  double number = 0;
  if (!input.AsNumber(number)) return InvalidArgument("round needs a number");
  if (digits < 0 || digits > 15) return InvalidArgument("a precision is between 0 and 15");
  if (method == "common") {
    Int integer = 0;
    if (input.AsInt(integer)) return Value(integer);
    if (!std::isfinite(number)) return input;
    // Correctly rounded from the exact value, ties to even, as Python's round().
    return Value(*ParseFloat(fmt::format("{:.{}f}", number, static_cast<int>(digits))));
  }
  if (method != "ceil" && method != "floor") {
    return InvalidArgument("round knows the methods common, ceil and floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = number * scale;
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return Value((whole + 0.0) / scale);  // there is no -0 among Python's integers
}

Result<Value> ToString(const Value& input, const Arguments& arguments, Budget& budget) {
  TRY(Bind(arguments, {}));
  return Value(TRY(Str(input, budget)));
}

Result<Value> ToJsonFilter(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style{.ensure_ascii = Flag(bound[0]), .sort_keys = Flag(bound[3])};
  if (bound[1] && !bound[1]->IsNone()) {
    const Int indent = TRY(AsInteger(*bound[1], "the indent"));
    if (indent < 0 || indent > 100) return InvalidArgument("an indent is between 0 and 100");
    style.indent = static_cast<int>(indent);
    style.item_separator = std::string(1, ',');
  }
  if (bound[2] && !bound[2]->IsNone()) {
    const List* separators = bound[2]->AsList();
    if (separators == nullptr || separators->items.size() != 2) {
      return InvalidArgument("separators are a pair of strings");
    }
    style.item_separator = TRY(AsString(separators->items[0], "a separator"))->text();
    style.key_separator = TRY(AsString(separators->items[1], "a separator"))->text();
  }
  return Value(TRY(ToJson(input, style, budget)));
}

Result<Value> Trim(const Value& input, const Arguments& arguments, Budget& budget) {
  const Bound bound = TRY(Bind(arguments, {"chars"}));
  const Text text = TRY(Str(input, budget));
  if (!bound[0] || bound[0]->IsNone()) return Value::Str(Strip(*text, Side::kBoth, std::nullopt));
  const SpannedText* chars = TRY(AsString(*bound[0], "the characters"));
  return Value::Str(Strip(*text, Side::kBoth, chars->text()));
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", Abs},
    {"capitalize", CaseFilter<Case::kCapitalize>},
    {"count", LengthFilter},
    {"d", Default},
    {"default", Default},
    {"float", ToFloat},
    {"indent", Indent},
    {"int", ToInt},
    {"length", LengthFilter},
    {"lower", CaseFilter<Case::kLower>},
    {"replace", ReplaceFilter},
    {"reverse", Reverse},
    {"round", Round},
    {"safe", ToString},  // nothing is escaped here
    {"string", ToString},
    {"title", CaseFilter<Case::kTitleFilter>},
    {"tojson", ToJsonFilter},
    {"trim", Trim},
    {"upper", CaseFilter<Case::kUpper>},
};

}  // namespace

Filter FindFilter(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  return FindListFilter(name);
}

}  // namespace fathom::jinja
