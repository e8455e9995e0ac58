#include "grammar/ebnf_pattern.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "grammar/grammar_limits.h"
#include "grammar/grammar_steps.h"

namespace fathom {
namespace {

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

bool Among(std::string_view bytes, char c) {
  return bytes.find(c) != bytes.npos;
}

enum class Kind { kName, kIs, kPattern, kPunctuation, kQuantifier };

// `text` of what is quoted, a class or a quantifier is a pattern already.
struct Lexeme {
  Kind kind;
  std::string text;
  std::string_view source = {};
};

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// For xgrammar these are no names of rules, wherever they stand.
bool IsReserved(std::string_view name) {
  constexpr std::string_view kReserved[] = {"true",        "false",           "Regex",
                                            "Token",       "ExcludeToken",    "Substring",
                                            "TagDispatch", "TokenTagDispatch"};
  return IsDigit(name[0]) || std::ranges::find(kReserved, name) != std::end(kReserved);
}

// Cuts a grammar into lexemes. What it does not know for certain it does not take.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::optional<std::vector<Lexeme>> All() {
    std::vector<Lexeme> lexemes;
    while (Skip()) {
      const size_t begin = at_;
      std::optional<Lexeme> next = Next();
      if (!next) return std::nullopt;
      next->source = text_.substr(begin, at_ - begin);
      lexemes.push_back(std::move(*next));
    }
    return lexemes;
  }

 private:
  // To the next lexeme, if there is one.
  bool Skip() {
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '#') at_ = text_.find_first_of("\r\n", at_);
      if (at_ == text_.npos) return false;
      if (!Among(" \t\r\n", text_[at_])) return true;
    }
    return false;
  }

  std::optional<Lexeme> Next() {
    const char c = text_[at_];
    if (c == '"') return Quoted();
    if (c == '[') return Class();
    if (c == '{') return Count();
    if (text_.substr(at_).starts_with("::=")) return at_ += 3, Lexeme{Kind::kIs, ""};
    ++at_;
    if (c == '*' || c == '+' || c == '?') return Lexeme{Kind::kQuantifier, std::string(1, c)};
    if (c == '(' || c == ')' || c == '|') return Lexeme{Kind::kPunctuation, std::string(1, c)};
    if (!IsNameByte(c)) return std::nullopt;
    const size_t begin = at_ - 1;
    while (at_ < text_.size() && IsNameByte(text_[at_])) ++at_;
    if (at_ < text_.size() && text_[at_] == '(') return std::nullopt;  // a macro
    const std::string_view name = text_.substr(begin, at_ - begin);
    if (IsReserved(name)) return std::nullopt;
    return Lexeme{Kind::kName, std::string(name)};
  }

  // The escapes that mean the same in quotes, classes and patterns.
  static bool IsCommonEscape(char c) { return c == 'n' || c == 'r' || c == 't' || c == '\\'; }

  // How long an escape by a character's number is here, which patterns have as well: \x41 or
  // \u0041. More digits are more of the number here, and are none there.
  size_t NumberEscape() const {
    const std::string_view rest = text_.substr(at_);
    const size_t digits = rest.starts_with("\\x") ? 2 : rest.starts_with("\\u") ? 4 : 0;
    if (digits == 0) return 0;
    const size_t end = rest.find_first_not_of("0123456789abcdefABCDEF", 2);
    const size_t found = std::min(end, rest.size()) - 2;
    return found == digits || (found > digits && digits == 4) ? 2 + digits : 0;
  }

  std::optional<Lexeme> Quoted() {
    constexpr std::string_view kSpecial = R"(^$.|?*+()[]{}/-)";
    std::string pattern;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') return ++at_, Lexeme{Kind::kPattern, pattern};
      if (c == '\n' || c == '\r') return std::nullopt;
      if (const size_t size = NumberEscape(); size > 0) {
        pattern += text_.substr(at_, size - 1);
        at_ += size - 1;
      } else if (c == '\\') {
        if (++at_ == text_.size()) return std::nullopt;
        if (IsCommonEscape(text_[at_])) pattern += '\\';
        if (!IsCommonEscape(text_[at_]) && text_[at_] != '"') return std::nullopt;
      } else if (Among(kSpecial, c)) {
        pattern += '\\';
      }
      pattern += text_[at_];
    }
    return std::nullopt;
  }

  std::optional<Lexeme> Class() {
    const size_t begin = at_;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == ']') {
        ++at_;
        const std::string_view whole = text_.substr(begin, at_ - begin);
        if (whole == "[]" || whole == "[^]") return std::nullopt;
        return Lexeme{Kind::kPattern, std::string(whole)};
      }
      if (c == '[' || c == '\n' || c == '\r') return std::nullopt;
      if (c != '\\') continue;
      if (const size_t size = NumberEscape(); size > 0) {
        at_ += size - 1;
        continue;
      }
      if (++at_ == text_.size()) return std::nullopt;
      if (!IsCommonEscape(text_[at_]) && text_[at_] != ']' && text_[at_] != '-') {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  std::optional<Lexeme> Count() {
    const size_t end = text_.find('}', at_);
    if (end == text_.npos) return std::nullopt;
    std::string text;
    char before = ' ';
    for (const char c : text_.substr(at_, end + 1 - at_)) {
      if (c != ' ') {
        const bool two = before == ' ' && IsDigit(c) && !text.empty() && IsDigit(text.back());
        if (two || !Among("0123456789,{}", c)) return std::nullopt;
        text += c;
      }
      before = c;
    }
    at_ = end + 1;
    return Lexeme{Kind::kQuantifier, text};
  }

  const std::string_view text_;
  size_t at_ = 0;
};

// Puts the bodies of rules in the place of their names.
class Inliner {
 public:
  // False for what is no list of rules.
  bool Read(const std::vector<Lexeme>& lexemes) {
    std::vector<Lexeme>* body = nullptr;
    for (size_t i = 0; i < lexemes.size(); ++i) {
      if (lexemes[i].kind == Kind::kIs) return false;
      const bool begins = i + 1 < lexemes.size() && lexemes[i + 1].kind == Kind::kIs;
      if (begins) {
        const auto [at, is_new] = rules_.try_emplace(lexemes[i].text);
        if (lexemes[i].kind != Kind::kName || !is_new) return false;
        if (i > 0 && !BeginsLine(lexemes[i - 1], lexemes[i])) return false;
        body = &at->second;
        ++i;
      } else if (body != nullptr) {
        body->push_back(lexemes[i]);
      } else {
        return false;
      }
    }
    return true;
  }

  // What the rule matches, as a pattern.
  const std::optional<std::string>& PatternOf(const std::string& name) {
    // Of a rule within itself there is none, which is what stands here until it is known.
    const auto [known, is_new] = known_.try_emplace(name);
    if (!is_new) return known->second;
    LookAtSteps();
    std::optional<std::string> pattern = Expand(name);
    known_bytes_ += pattern ? pattern->size() : 0;
    if (known_bytes_ <= kMostKnownBytes) known->second = std::move(pattern);
    return known->second;
  }

  // The rules that have no pattern as they stand, and those that they name and that have one, so.
  std::optional<std::string> WithPatterns() {
    if (HasSmallPattern("root")) return std::nullopt;  // no recursion: one pattern, or as it stands
    std::string grammar;
    std::set<std::string> named;
    for (const auto& [name, body] : rules_) {
      if (HasSmallPattern(name)) continue;
      grammar += name + " ::=";
      for (const Lexeme& lexeme : body) {
        grammar.append(" ").append(lexeme.source);
        if (lexeme.kind == Kind::kName) named.insert(lexeme.text);
      }
      grammar += '\n';
    }
    bool any = false;
    for (const std::string& name : named) {
      if (!rules_.contains(name)) return std::nullopt;
      if (!HasSmallPattern(name)) continue;
      any = true;
      grammar += name + " ::= " + PatternInEbnf(*PatternOf(name)) + '\n';
    }
    if (!any || grammar.size() > kMaxEbnfBytes) return std::nullopt;
    return grammar;
  }

 private:
  static constexpr size_t kMostKnownBytes = size_t{4} << 20;  // rules beyond stay rules

  static bool BeginsLine(const Lexeme& before, const Lexeme& lexeme) {
    const char* const end = before.source.data() + before.source.size();
    return std::string_view(end, static_cast<size_t>(lexeme.source.data() - end))
               .find_first_of("\r\n") != std::string_view::npos;
  }

  bool HasSmallPattern(const std::string& name) {
    const std::optional<std::string>& pattern = PatternOf(name);
    // More than a whole pattern may have: numbers and strings of JSON that count digits and spaces.
    // The slowest that was tried took a second.
    constexpr int64_t kMostChoices = 64;
    return pattern && IsSmallAutomaton(*pattern, kMostChoices);
  }

  std::optional<std::string> Expand(const std::string& name) {
    const auto rule = rules_.find(name);
    if (rule == rules_.end()) return std::nullopt;
    std::string pattern = "(";
    char before = '|';  // what the last lexeme was: '|' or '(', an element 'e', a quantifier 'q'
    int depth = 0;
    for (const Lexeme& lexeme : rule->second) {
      if (!Follows(lexeme, before, depth)) return std::nullopt;
      if (lexeme.kind == Kind::kName) {
        const std::optional<std::string>& inner = PatternOf(lexeme.text);
        if (!inner) return std::nullopt;
        pattern += *inner;
      } else if (lexeme.kind == Kind::kPattern && lexeme.text[0] != '[') {
        pattern += "(" + lexeme.text + ")";  // of which a quantifier repeats all
      } else {
        pattern += lexeme.text;
      }
      if (pattern.size() > kMaxPatternBytes) return std::nullopt;
    }
    if (before == '|' || depth != 0) return std::nullopt;
    return pattern + ")";
  }

  // Whether the lexeme may stand behind what was before it, where patterns mean the same: every
  // alternative has an element, and no quantifier has another.
  static bool Follows(const Lexeme& lexeme, char& before, int& depth) {
    const bool wants_element = before == '|' || before == '(';
    if (lexeme.kind == Kind::kQuantifier) return std::exchange(before, 'q') == 'e';
    if (lexeme.kind != Kind::kPunctuation) return before = 'e', true;
    if (lexeme.text == "(") return before = '(', ++depth, true;
    if (wants_element) return false;
    before = lexeme.text == "|" ? '|' : 'e';
    return lexeme.text == "|" || --depth >= 0;
  }

  std::map<std::string, std::vector<Lexeme>> rules_;
  std::map<std::string, std::optional<std::string>> known_;  // of PatternOf()
  size_t known_bytes_ = 0;
};

}  // namespace

std::string PatternInEbnf(std::string_view pattern) {
  std::string quoted = "Regex(\"";
  for (const char c : pattern) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : std::string(1, c);
  }
  return quoted + "\")";
}

std::optional<std::string> PatternOfEbnf(std::string_view grammar) {
  const std::optional<std::vector<Lexeme>> lexemes = Lexer(grammar).All();
  Inliner inliner;
  if (!lexemes || !inliner.Read(*lexemes)) return std::nullopt;
  return inliner.PatternOf("root");
}

std::optional<std::string> EbnfWithPatterns(std::string_view grammar) {
  const std::optional<std::vector<Lexeme>> lexemes = Lexer(grammar).All();
  Inliner inliner;
  if (!lexemes || !inliner.Read(*lexemes)) return std::nullopt;
  return inliner.WithPatterns();
}

}  // namespace fathom
