// str(), repr() and json.dumps() of values.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "chat/jinja/text.h"
#include "chat/jinja/value.h"

namespace fathom::jinja {
namespace {

// Text in the making: it is paid for as it grows, so that shared values cannot blow it up.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  Status Put(std::string_view text) {
    out_ += text;
    return budget_.SpendText(out_.size() > kMaxTextBytes ? out_.size() : text.size());
  }
  SpannedText Take() { return SpannedText(out_, /*trusted=*/false); }

 private:
  Budget& budget_;
  std::string out_;
};

bool IsPrintable(char32_t c) {
  if (c < 0x7F) return c >= ' ';
  if (c <= 0xA0 || c == 0xAD || IsSpace(c)) return false;
  const bool formatting = (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
                          (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
  const bool private_or_surrogate = c >= 0xD800 && c <= 0xF8FF;
  return !formatting && !private_or_surrogate;
}

std::string StringRepr(std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char32_t quote = double_quotes ? '"' : '\'';
  std::string repr(1, static_cast<char>(quote));
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCodePoint(text, at);
    if (c == quote || c == '\\') {
      repr += '\\';
      repr += static_cast<char>(c);
    } else if (c == '\n') {
      repr += "\\n";
    } else if (c == '\r') {
      repr += "\\r";
    } else if (c == '\t') {
      repr += "\\t";
    } else if (IsPrintable(c)) {
      AppendCodePoint(c, repr);
    } else if (c < 0x100) {
      repr += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      repr += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      repr += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return repr += static_cast<char>(quote);
}

std::string JsonString(std::string_view text, bool ensure_ascii) {
  std::string json = "\"";
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCodePoint(text, at);
    constexpr std::string_view kShort = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    const size_t known = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      json += '\\';
      json += kLetters[known];
    } else if (c < ' ' || (ensure_ascii && c > '~' && c < 0x10000)) {
      json += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (ensure_ascii && c >= 0x10000) {
      const uint32_t bits = static_cast<uint32_t>(c) - 0x10000;
      json += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (bits >> 10), 0xDC00 + (bits & 0x3FF));
    } else {
      AppendCodePoint(c, json);
    }
  }
  return json += '"';
}

// What is the same as a value of its own and within a list. Empty for strings and containers.
std::string ScalarRepr(const Value& value) {
  if (value.IsNone()) return "None";
  if (const bool* flag = value.As<bool>()) return *flag ? "True" : "False";
  if (const Integer* number = value.As<Integer>()) return IntRepr(number->value);
  if (const double* number = value.As<double>()) return FloatRepr(*number);
  return {};
}

Status PutRepr(const Value& value, Writer& out) {
  if (const SpannedText* text = value.AsText()) return out.Put(StringRepr(text->text()));
  if (value.IsUndefined()) return out.Put("Undefined");
  if (const List* list = value.AsList()) {
    TRY(out.Put(list->is_tuple ? "(" : "["));
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) TRY(out.Put(", "));
      TRY(PutRepr(list->items[i], out));
    }
    if (list->is_tuple && list->items.size() == 1) TRY(out.Put(","));
    return out.Put(list->is_tuple ? ")" : "]");
  }
  if (const Dict* dict = value.AsDict()) {
    TRY(out.Put("{"));
    bool first = true;
    for (const auto& [key, item] : dict->items()) {
      if (!first) TRY(out.Put(", "));
      first = false;
      TRY(PutRepr(key, out));
      TRY(out.Put(": "));
      TRY(PutRepr(item, out));
    }
    return out.Put("}");
  }
  const std::string scalar = ScalarRepr(value);
  if (scalar.empty()) return InvalidArgument("a {} cannot be printed", TypeName(value));
  return out.Put(scalar);
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget)
      : style_(style), budget_(budget), out_(budget) {}

  Status Put(const Value& value, int level) {
    if (const SpannedText* text = value.AsText()) {
      return out_.Put(JsonString(text->text(), style_.ensure_ascii));
    }
    if (const List* list = value.AsList()) {
      return PutItems('[', ']', list->items.size(), level,
                      [&](size_t i) -> Status { return Put(list->items[i], level + 1); });
    }
    if (const Dict* dict = value.AsDict()) return PutDict(*dict, level);
    return out_.Put(TRY(Scalar(value)));
  }
  SpannedText Take() { return out_.Take(); }

 private:
  static Result<std::string> Scalar(const Value& value) {
    if (value.IsNone()) return std::string("null");
    if (const bool* flag = value.As<bool>()) return std::string(*flag ? "true" : "false");
    if (const double* number = value.As<double>(); number != nullptr && !std::isfinite(*number)) {
      return std::string(std::isnan(*number) ? "NaN" : *number < 0 ? "-Infinity" : "Infinity");
    }
    std::string scalar = ScalarRepr(value);
    if (scalar.empty()) {
      return InvalidArgument("a value of type '{}' cannot be written as JSON", TypeName(value));
    }
    return scalar;
  }

  Status PutDict(const Dict& dict, int level) {
    using Entry = std::pair<Value, Value>;
    std::vector<const Entry*> entries;
    for (const Entry& entry : dict.items()) entries.push_back(&entry);
    if (style_.sort_keys) {
      Status error;
      std::stable_sort(entries.begin(), entries.end(), [&](const Entry* a, const Entry* b) {
        if (!error.ok()) return false;
        const Result<bool> less = Less(a->first, b->first, budget_);
        if (!less.ok()) error = less.status();
        return less.ok() && *less;
      });
      TRY(error);
    }
    return PutItems('{', '}', entries.size(), level, [&](size_t i) -> Status {
      const SpannedText* text = entries[i]->first.AsText();
      const std::string key = text != nullptr ? text->text() : TRY(Scalar(entries[i]->first));
      TRY(out_.Put(JsonString(key, style_.ensure_ascii)));
      TRY(out_.Put(style_.key_separator));
      return Put(entries[i]->second, level + 1);
    });
  }

  template <class PutItem>
  Status PutItems(char open, char close, size_t count, int level, PutItem put_item) {
    TRY(out_.Put({&open, 1}));
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) TRY(out_.Put(style_.item_separator));
      TRY(NewLine(level + 1));
      TRY(put_item(i));
    }
    if (count > 0) TRY(NewLine(level));
    return out_.Put({&close, 1});
  }

  Status NewLine(int level) {
    if (style_.indent < 0) return {};
    TRY(out_.Put("\n"));
    return out_.Put(std::string(static_cast<size_t>(level) * style_.indent, ' '));
  }

  const JsonStyle& style_;
  Budget& budget_;
  Writer out_;
};

}  // namespace

std::string IntRepr(Int number) {
  return fmt::format("{}", number);
}

// The shortest digits that read back as the same number; exponents from 1e16 and below 1e-4.
std::string FloatRepr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64] = {};
  const auto end = std::to_chars(buffer, std::end(buffer), number, std::chars_format::scientific);
  const std::string_view scientific(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = scientific.find('e');
  const int exponent = std::atoi(scientific.data() + e + 1);
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  const auto fixed = std::to_chars(buffer, std::end(buffer), number, std::chars_format::fixed);
  std::string repr(buffer, fixed.ptr);
  if (repr.find('.') == std::string::npos) repr += ".0";
  return repr;
}

Result<Text> Str(const Value& value, Budget& budget) {
  if (const Text* text = value.As<Text>()) return *text;
  static const Text kEmpty = std::make_shared<const SpannedText>();
  if (value.IsUndefined()) return kEmpty;
  Writer out(budget);
  TRY(PutRepr(value, out));
  return std::make_shared<const SpannedText>(out.Take());
}

Result<Text> ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter out(style, budget);
  TRY(out.Put(value, 0));
  return std::make_shared<const SpannedText>(out.Take());
}

}  // namespace fathom::jinja
