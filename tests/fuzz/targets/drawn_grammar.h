// Grammars of which the input's bytes are the choices: nearly all of them compile, where of bytes
// that are the grammar itself few do.
#pragma once

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

namespace fathom {

class DrawnGrammar {
 public:
  explicit DrawnGrammar(std::string_view bytes) : bytes_(bytes) {}

  std::string Ebnf() {
    std::string rules;
    for (size_t rule = 0, count = 1 + Below(std::size(kRules)); rule < count; ++rule) {
      rules += fmt::format("{} ::= {}\n", kRules[rule], EbnfChoices(3));
    }
    return rules;
  }

  std::string Pattern(int depth = 5) {
    const size_t kind = depth > 0 ? Below(8) : 0;
    if (kind < 2) return std::string(Of(kCharacters));
    if (kind < 4) return Pattern(depth - 1) + Pattern(depth - 1);
    if (kind == 4) return fmt::format("({}{})", Of(kGroups), Pattern(depth - 1));
    if (kind == 5) return fmt::format("{}|{}", Pattern(depth - 1), Pattern(depth - 1));
    return Pattern(depth - 1) + std::string(Of(kRepeats));
  }

  std::string Schema(int depth = 4) {
    const size_t kind = depth > 0 ? Below(8) : 0;
    if (kind < 2) return std::string(Of(kSchemas));
    if (kind == 2) return PatternSchema();
    if (kind == 3) return fmt::format(R"({{"{}":[{}]}})", Of(kJoined), Several(depth));
    if (kind == 4) {
      return fmt::format(R"({{"type":"array","items":{},"minItems":{},"maxItems":{}}})",
                         Schema(depth - 1), Below(4), Below(100));
    }
    std::string properties;
    for (const char name : Names()) {
      properties +=
          fmt::format(R"({}"{}":{})", properties.empty() ? "" : ",", name, Schema(depth - 1));
    }
    return fmt::format(R"({{"type":"object","properties":{{{}}},"required":[{}],)", properties,
                       Below(2) ? R"("a")" : "") +
           fmt::format(R"("additionalProperties":{},"$defs":{{"a":{}}}}})",
                       Below(2) ? "false" : Schema(depth - 1), Schema(depth - 1));
  }

  std::string_view rest() const { return bytes_; }

 private:
  static constexpr std::string_view kRules[] = {"root", "a", "b", "c", "d", "e1"};
  static constexpr std::string_view kTerminals[] = {R"("a")",
                                                    R"("b")",
                                                    R"("ab")",
                                                    R"("")",
                                                    R"("\n")",
                                                    R"("\x41")",
                                                    R"("\u00e9")",
                                                    R"("é")",
                                                    R"("\"")",
                                                    "[a-z]",
                                                    "[^a]",
                                                    "[ab]",
                                                    R"([^"\\])",
                                                    R"([\x00-\x1f])",
                                                    "[a-]",
                                                    "[à-一]",
                                                    ".",

                                                    R"x(Regex("a*b"))x",
                                                    R"x(Regex("(a|b){1,200}c"))x"};
  static constexpr std::string_view kRepeats[] = {
      "*",       "+",     "?",     "{2}",  "{0}",       "{0,1}",  "{1,}", "{0,3}", "{129}",
      "{0,200}", "{3,1}", "{999}", "{,3}", "{ 2 , 3 }", "{2}{2}", "?*",   "+?",    "{1000}"};
  static constexpr std::string_view kCharacters[] = {
      "a",         "b",      R"(\d)", R"(\w)",    R"(\s)",       R"(\S)",     R"(\W)",
      ".",         "[a-z]",  "[^a]",  R"([^\W])", R"([\s-.])",   R"([\s\S])", R"(\x41)",
      R"(\u0041)", R"(\n)",  "\t",    "\"",       "^",           "$",         R"(\b)",
      "é",         "[à-一]", "(?i)",  R"(\p{L})", "[[:alpha:]]", R"(\1)",     "",
      "{",         "}",      "]"};
  static constexpr std::string_view kGroups[] = {"",    "?:",    "?=",   "?!",
                                                 "?<=", "?P<n>", "?<n>", "?i:"};
  static constexpr std::string_view kJoined[] = {"anyOf", "oneOf", "allOf"};
  static constexpr std::string_view kSchemas[] = {
      "{}",
      "true",
      "false",
      R"({"type":"string"})",
      R"({"type":"integer","minimum":-3,"maximum":70})",
      R"({"enum":[1,"a",null]})",
      R"({"const":"x"})",
      R"({"$ref":"#"})",
      R"({"$ref":"#/$defs/a"})",
      R"({"type":"string","minLength":2,"maxLength":300})",
      R"({"type":"string","format":"json-pointer"})",
      R"({"type":"string","format":"uuid"})",
      R"({"type":"number"})",
      R"({"type":"boolean"})",
      R"({"type":["null","object"]})",
      R"({"type":"string","format":"email"})"};

  size_t Below(size_t count) {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte % count;
  }
  std::string_view Of(std::span<const std::string_view> words) {
    return words[Below(words.size())];
  }

  std::string PatternSchema() {
    const boost::json::value pattern(Pattern(3));
    return fmt::format(R"({{"type":"string","pattern":{}}})", boost::json::serialize(pattern));
  }
  std::string Names() {
    std::string names;
    for (const char name : std::string_view("abcdef")) {
      if (Below(3) == 0) names += name;
    }
    return names;
  }
  std::string Several(int depth) {
    std::string schemas = Schema(depth - 1);
    for (size_t i = Below(4); i > 0; --i) schemas += "," + Schema(depth - 1);
    return schemas;
  }

  std::string EbnfElement(int depth) {
    const size_t kind = depth > 0 ? Below(8) : Below(2);
    if (kind == 0) return std::string(Of(kTerminals));
    if (kind == 1) return std::string(Of(kRules));
    if (kind < 5) return fmt::format("({})", EbnfChoices(depth - 1));
    return EbnfElement(depth - 1) + std::string(Of(kRepeats));
  }
  std::string EbnfChoices(int depth) {
    std::string choices;
    for (size_t choice = 0, count = 1 + Below(3); choice < count; ++choice) {
      if (choice > 0) choices += " | ";
      for (size_t i = Below(4); i > 0; --i) choices += EbnfElement(depth) + " ";
    }
    return choices;
  }

  std::string_view bytes_;
};

}  // namespace fathom
