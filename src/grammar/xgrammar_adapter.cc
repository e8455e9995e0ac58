#include "grammar/xgrammar_adapter.h"

#include <dlpack/dlpack.h>
#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include <algorithm>
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
#include "grammar/plain_sentence.h"
#include "grammar/prepared_schema.h"
#include "grammar/utf8_tokens.h"

namespace {

// What xgrammar has warned of on this thread, while somebody asks. Each warning is of something in
// a grammar that it leaves out.
thread_local std::string* warnings = nullptr;

struct GivenUp {
  fathom::Status why;
};

}  // namespace

// With XGRAMMAR_LOG_CUSTOMIZE the library asks for the first two; for the third it is mended
// (cmake/xgrammar.cmake).
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

void CheckTime() {
  fathom::Status status = fathom::CompileLimit::Check();
  if (status.ok()) status = fathom::PaceLimit::Check();
  if (!status.ok()) throw GivenUp{std::move(status)};
}

// One of many such, of which it takes thousands for a millisecond.
void CheckStep() {
  constexpr uint32_t kStepsPerCheck = 1024;
  thread_local uint32_t steps = 0;
  if (++steps % kStepsPerCheck == 0) CheckTime();
}

}  // namespace xgrammar

namespace fathom {
namespace {

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

// What is forgotten of an answer's way (cmake/xgrammar.cmake) is behind so many tokens.
constexpr int32_t kMostRollback = 32;

class XgrammarState final : public GrammarState {
 public:
  // `barred`: tokens that are in no text, though xgrammar takes them for some.
  XgrammarState(const xgrammar::CompiledGrammar& grammar, int32_t vocab,
                std::shared_ptr<const Utf8Tokens> utf8, std::vector<TokenId> barred)
      : matcher_(grammar), vocab_(vocab), utf8_(std::move(utf8)), barred_(std::move(barred)) {}

  Result<bool> Accept(TokenId token) override {
    const Warnings ignored;  // of tokens that are refused
    if (!utf8_->MayFollow(ends_.back(), token)) return false;
    try {
      const bool taken = matcher_.AcceptToken(Raw(token));
      if (taken) ends_.push_back(utf8_->Last(token));
      return taken;
    } catch (const GivenUp& given_up) {
      return given_up.why;
    } catch (const std::exception& error) {
      return Internal("the grammar failed at token {}: {}", Raw(token), error.what());
    }
  }

  Status FillMask(std::span<uint32_t> words) override {
    auto size = static_cast<int64_t>(words.size());
    CHECK(size == MaskWords(vocab_), "a mask of {} words for {} tokens", size, vocab_);
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
    for (const TokenId token : barred_) {
      const auto id = static_cast<uint32_t>(Raw(token));
      words[id / 32] &= ~(1U << (id % 32));
    }
    utf8_->Mask(ends_.back(), words);
    if (vocab_ % 32 != 0) words.back() &= (1U << (vocab_ % 32)) - 1;
    if (std::any_of(words.begin(), words.end(), [](uint32_t word) { return word != 0; })) return {};
    return Internal("no token of the vocabulary can go on with the grammar");
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
  xgrammar::GrammarMatcher matcher_;
  const int32_t vocab_;
  const std::shared_ptr<const Utf8Tokens> utf8_;
  const std::vector<TokenId> barred_;
  std::vector<uint8_t> ends_ = {0};  // the last byte behind each token, from before the first
};

class XgrammarGrammar final : public Grammar {
 public:
  XgrammarGrammar(xgrammar::CompiledGrammar grammar, size_t bytes, int32_t vocab,
                  std::shared_ptr<const Utf8Tokens> utf8, std::vector<TokenId> barred)
      : grammar_(std::move(grammar)),
        bytes_(bytes),
        vocab_(vocab),
        utf8_(std::move(utf8)),
        barred_(std::move(barred)) {}

  Result<std::unique_ptr<GrammarState>> Start() const override {
    try {
      return std::unique_ptr<GrammarState>(
          std::make_unique<XgrammarState>(grammar_, vocab_, utf8_, barred_));
    } catch (const std::exception& error) {
      return Internal("the grammar failed: {}", error.what());
    }
  }
  size_t bytes() const override { return bytes_; }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const size_t bytes_;
  const int32_t vocab_;
  const std::shared_ptr<const Utf8Tokens> utf8_;
  const std::vector<TokenId> barred_;
};

// One automaton for a whole pattern, whose masks take some microseconds: nothing in them depends on
// what stands around a rule. Nothing where xgrammar makes none.
std::optional<xgrammar::CompiledGrammar> CompileWhole(xgrammar::GrammarCompiler& compiler,
                                                      std::string_view pattern, Warnings& warned) {
  std::string quoted;
  for (const char c : pattern) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : std::string(1, c);
  }
  std::optional<xgrammar::CompiledGrammar> compiled;
  try {
    compiled = compiler.CompileGrammar("root ::= Regex(\"" + quoted + "\")");
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {  // GivenUp is none
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
  if (pattern && IsSmallAutomaton(*pattern)) {
    if (auto whole = CompileWhole(compiler, *pattern, warned)) return *std::move(whole);
  }
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
      xgrammar::CompiledGrammar compiled = fathom::Compile(compiler, spec, warned);
      std::vector<TokenId> barred = BarredFrom(spec, lazy->vocabulary);
      const auto bytes = static_cast<size_t>(std::max<int64_t>(ThreadBytes() - before, 0));
      auto grammar = std::make_shared<XgrammarGrammar>(std::move(compiled), bytes, size, lazy->utf8,
                                                       std::move(barred));
      if (!warned.text().empty()) {
        return InvalidArgument("{}", PlainSentence(spec.kind, warned.text()));
      }
      TRY(TryPace(*grammar, size));
      return std::shared_ptr<const Grammar>(std::move(grammar));
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
