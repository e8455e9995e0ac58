#include "grammar/xgrammar_adapter.h"

#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include <algorithm>
#include <boost/json.hpp>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_bytes.h"
#include "grammar/compile_limit.h"
#include "grammar/ebnf_pattern.h"
#include "grammar/grammar_limits.h"
#include "grammar/grammar_pace.h"
#include "grammar/grammar_steps.h"
#include "grammar/plain_sentence.h"
#include "grammar/prepared_schema.h"
#include "grammar/utf8_tokens.h"

namespace {

// What xgrammar has warned of on this thread, while somebody asks. Each warning is of something in
// a grammar that it leaves out.
thread_local std::string* warnings = nullptr;

// Whether the EBNF that it reads on this thread is as a client wrote it.
thread_local bool clients_ebnf = false;

struct GivenUp {
  fathom::Status why;
};

}  // namespace

// With XGRAMMAR_LOG_CUSTOMIZE the library asks for these.
namespace xgrammar {

// It must not return, and xgrammar's callers expect what its own does: an exception.
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  // The same is said at every look at a pattern.
  if (warnings == nullptr || level < kWarning || warnings->find(message) != std::string::npos)
    return;
  if (!warnings->empty()) warnings->append("; ");
  warnings->append(message);
}

}  // namespace xgrammar

namespace fathom {

void LookAtSteps() {
  Status status = PaceLimit::Check();
  if (status.ok()) status = CompileLimit::Check();
  if (!status.ok()) throw GivenUp{std::move(status)};
  constexpr int64_t kOften = 1024;  // a millisecond's work is thousands
  if (steps_to_look < 0) steps_to_look = kOften;
}

std::string FaultOfMacro(const std::string& pattern, bool json_string) {
  if (!clients_ebnf) return "";
  const PatternUse use = json_string ? PatternUse::kJsonString : PatternUse::kText;
  const Status status = CheckSchemaPattern(pattern, "the pattern of Regex", use);
  return std::string(status.message());
}

namespace {

class ClientsEbnf {
 public:
  ClientsEbnf() { clients_ebnf = true; }
  ~ClientsEbnf() { clients_ebnf = false; }
  ClientsEbnf(const ClientsEbnf&) = delete;
};

class Warnings {
 public:
  Warnings() { warnings = &text_; }
  ~Warnings() { warnings = nullptr; }
  Warnings(const Warnings&) = delete;
  const std::string& text() const { return text_; }
  void Forget() { text_.clear(); }

 private:
  std::string text_;
};

// What is forgotten of an answer's way (cmake/xgrammar_mends.cmake) is behind so many tokens.
constexpr int32_t kMostRollback = 32;

// Of a grammar and its answers.
struct Shared {
  xgrammar::CompiledGrammar grammar;
  int32_t vocab = 0;
  std::shared_ptr<const Utf8Tokens> utf8;
  std::vector<TokenId> barred;  // in no text, though xgrammar takes them for some
  // What may begin an answer, once it is known: all answers of a request ask for it at once.
  std::vector<uint32_t> first_mask;
};

class XgrammarState final : public GrammarState {
 public:
  explicit XgrammarState(std::shared_ptr<const Shared> shared)
      : shared_(std::move(shared)), matcher_(shared_->grammar) {}

  Result<bool> Accept(TokenId token) override {
    const Warnings ignored;  // of tokens that are refused
    if (!shared_->utf8->MayFollow(ends_.back(), token)) return false;
    try {
      const bool taken = matcher_.AcceptToken(Raw(token));
      if (taken) ends_.push_back(shared_->utf8->Last(token));
      return taken;
    } catch (const GivenUp& given_up) {
      return given_up.why;
    } catch (const std::exception& error) {
      return Internal("the grammar failed at token {}: {}", Raw(token), error.what());
    }
  }

  Status FillMask(std::span<uint32_t> words) override {
    const int32_t vocab = shared_->vocab;
    auto size = static_cast<int64_t>(words.size());
    CHECK(size == MaskWords(vocab), "a mask of {} words for {} tokens", size, vocab);
    if (ends_.size() == 1 && !shared_->first_mask.empty()) {
      std::copy(shared_->first_mask.begin(), shared_->first_mask.end(), words.begin());
      return {};
    }
    DLTensor mask = {.data = words.data(),
                     .device = {.device_type = kDLCPU, .device_id = 0},
                     .ndim = 1,
                     .dtype = xgrammar::GetBitmaskDLType(),
                     .shape = &size,
                     .strides = nullptr,
                     .byte_offset = 0};
    try {
      if (!matcher_.FillNextTokenBitmask(&mask)) std::fill(words.begin(), words.end(), ~0U);
    } catch (const GivenUp& given_up) {
      return given_up.why;
    } catch (const std::exception& error) {
      return Internal("the grammar failed: {}", error.what());
    }
    for (const TokenId token : shared_->barred) {
      const auto id = static_cast<uint32_t>(Raw(token));
      words[id / 32] &= ~(1U << (id % 32));
    }
    shared_->utf8->Mask(ends_.back(), words);
    if (vocab % 32 != 0) words.back() &= (1U << (vocab % 32)) - 1;
    if (std::any_of(words.begin(), words.end(), [](uint32_t word) { return word != 0; })) return {};
    return NotFound("no token of the vocabulary can go on with the grammar");
  }

  bool terminated() const override { return matcher_.IsTerminated(); }

  Status Rollback(int32_t tokens) override {
    CHECK(tokens <= kMostRollback, "{} tokens are taken back", tokens);
    try {
      matcher_.Rollback(tokens);
      ends_.resize(ends_.size() - static_cast<size_t>(tokens));
      return {};
    } catch (const GivenUp& given_up) {
      return given_up.why;
    } catch (const std::exception& error) {
      return Internal("the grammar failed on its way back: {}", error.what());
    }
  }

 private:
  const std::shared_ptr<const Shared> shared_;
  xgrammar::GrammarMatcher matcher_;
  std::vector<uint8_t> ends_ = {0};  // the last byte behind each token, from before the first
};

class XgrammarGrammar final : public Grammar {
 public:
  XgrammarGrammar(Shared shared, size_t bytes)
      : shared_(std::make_shared<const Shared>(std::move(shared))), bytes_(bytes) {}

  Result<std::unique_ptr<GrammarState>> Start() const override {
    try {
      return std::unique_ptr<GrammarState>(std::make_unique<XgrammarState>(shared_));
    } catch (const GivenUp& given_up) {
      return given_up.why;
    } catch (const std::exception& error) {
      return Internal("the grammar failed: {}", error.what());
    }
  }
  size_t bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<const Shared> shared_;
  const size_t bytes_;
};

// Nothing where xgrammar makes none, or leaves something out.
std::optional<xgrammar::CompiledGrammar> CompileEbnf(xgrammar::GrammarCompiler& compiler,
                                                     const std::string& grammar, Warnings& warned) {
  std::optional<xgrammar::CompiledGrammar> compiled;
  try {
    compiled = compiler.CompileGrammar(grammar);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
  } catch (const GivenUp&) {  // as it stands it may do with less, or gives up as well
  }
  if (!warned.text().empty()) compiled.reset();
  warned.Forget();
  return compiled;
}

xgrammar::CompiledGrammar Compile(xgrammar::GrammarCompiler& compiler, const GrammarSpec& spec,
                                  Warnings& warned) {
  std::optional<std::string> pattern;
  if (spec.kind == GrammarKind::kRegex || spec.kind == GrammarKind::kChoices) pattern = spec.text;
  if (spec.kind == GrammarKind::kEbnf) pattern = PatternOfEbnf(spec.text);
  // Patterns are automata, whose masks take some microseconds: nothing in them depends on what
  // stands around a rule.
  std::optional<std::string> better;
  if (pattern && IsSmallAutomaton(*pattern)) {
    better = "root ::= " + PatternInEbnf(*pattern);
  } else if (spec.kind == GrammarKind::kEbnf) {
    better = EbnfWithPatterns(spec.text);
  }
  if (better) {
    if (auto compiled = CompileEbnf(compiler, *better, warned)) return *std::move(compiled);
  }
  const ClientsEbnf as_it_stands;
  switch (spec.kind) {
    case GrammarKind::kJsonObject:
      return compiler.CompileJSONSchema(R"({"type": "object"})", /*any_whitespace=*/true,
                                        std::nullopt, std::nullopt, /*strict_mode=*/false,
                                        kMaxWhitespace);
    case GrammarKind::kJsonSchema:
      return compiler.CompileJSONSchema(PreparedSchema(spec.text, spec.strict),
                                        /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                        spec.strict, kMaxWhitespace);
    case GrammarKind::kChoices:
    case GrammarKind::kRegex: return compiler.CompileRegex(spec.text);
    case GrammarKind::kEbnf: return compiler.CompileGrammar(spec.text);
    case GrammarKind::kStructuralTag:
    case GrammarKind::kCalls:
      return compiler.CompileStructuralTag(PreparedSchema(spec.text, /*strict=*/false));
  }
  CHECK(false, "grammar kind {}", static_cast<int>(spec.kind));
}

// What is wrong with a grammar within a structural tag, by its place: of the whole tag xgrammar
// would not say which it is.
Status ParseGrammarsOf(const boost::json::value& format, const std::string& at) {
  if (const boost::json::array* parts = format.if_array()) {
    for (size_t i = 0; i < parts->size(); ++i) {
      TRY(ParseGrammarsOf((*parts)[i], fmt::format("{}[{}]", at, i)));
    }
  }
  const boost::json::object* object = format.if_object();
  if (object == nullptr) return {};
  for (const auto& [key, part] : *object) {
    const std::string place = fmt::format("{}/{}", at, std::string_view(key));
    if (key == "content" || key == "elements" || key == "tags") TRY(ParseGrammarsOf(part, place));
    if (key != "grammar") continue;
    const ClientsEbnf as_it_stands;
    try {
      xgrammar::Grammar::FromEBNF(std::string(part.as_string()));
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      return InvalidArgument("{}: {}", place, PlainSentence(GrammarKind::kEbnf, error.what()));
    }
  }
  return {};
}

// The free text between a tag's parts is any bytes for xgrammar, markers' first ones too.
std::vector<TokenId> BarredFrom(const GrammarSpec& spec, const GrammarVocabulary& vocabulary) {
  std::vector<TokenId> barred;
  if (spec.kind == GrammarKind::kCalls) return barred;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    if (text.size() > 1 && text[0] == '\xff') barred.push_back(TokenId{static_cast<int32_t>(id)});
  }
  return barred;
}

xgrammar::TokenizerInfo InfoOf(const GrammarVocabulary& vocabulary) {
  std::vector<int32_t> eos;
  for (const TokenId id : vocabulary.eos) eos.push_back(Raw(id));
  return xgrammar::TokenizerInfo(vocabulary.tokens, xgrammar::VocabType::RAW, vocabulary.size, eos);
}

}  // namespace

GrammarCompiler::Compile MakeXgrammarCompile(GrammarVocabulary vocabulary) {
  // Made when the first grammar comes: servers that see none pay neither time nor memory for it.
  struct Lazy {
    explicit Lazy(GrammarVocabulary given) : vocabulary(std::move(given)) {}
    const xgrammar::TokenizerInfo& Info() {
      std::call_once(once, [this] {
        info.emplace(InfoOf(vocabulary));
        utf8 = std::make_shared<Utf8Tokens>(vocabulary.tokens);
      });
      return *info;
    }
    const GrammarVocabulary vocabulary;
    std::once_flag once;
    std::optional<xgrammar::TokenizerInfo> info;
    std::shared_ptr<const Utf8Tokens> utf8;
  };
  return [lazy = std::make_shared<Lazy>(std::move(vocabulary))](
             const GrammarSpec& spec) -> Result<std::shared_ptr<const Grammar>> {
    Warnings warned;
    const int32_t size = lazy->vocabulary.size;
    try {
      const xgrammar::TokenizerInfo& info = lazy->Info();
      // Neither threads nor a cache of its own: both are GrammarCompiler's.
      xgrammar::GrammarCompiler compiler(info, /*max_threads=*/1, /*cache_enabled=*/false);
      const int64_t before = ThreadBytes();  // xgrammar's own may be half of it
      if (spec.kind == GrammarKind::kStructuralTag) {
        TRY(ParseGrammarsOf(boost::json::parse(spec.text, {}, {.max_depth = 1000}).at("format"),
                            "format"));
      }
      Shared shared{.grammar = fathom::Compile(compiler, spec, warned),
                    .vocab = size,
                    .utf8 = lazy->utf8,
                    .barred = BarredFrom(spec, lazy->vocabulary),
                    .first_mask = {}};
      if (!warned.text().empty()) {
        return InvalidArgument("{}", PlainSentence(spec.kind, warned.text()));
      }
      shared.first_mask = TRY(TryPace(XgrammarGrammar(shared, /*bytes=*/0), size));
      const auto bytes = static_cast<size_t>(std::max<int64_t>(ThreadBytes() - before, 0));
      return std::shared_ptr<const Grammar>(
          std::make_shared<XgrammarGrammar>(std::move(shared), bytes));
    } catch (const GivenUp& given_up) {
      return given_up.why;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      return InvalidArgument("{}", PlainSentence(spec.kind, error.what()));
    }
  };
}

}  // namespace fathom
