#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "base/printable.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

// Backtracking steps of one match. A greedy run of one character class is one step.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kJitStackMax = 8 << 20;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeJitStack {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

// JIT-compiled code has no stack of its own; each thread lends it one.
pcre2_jit_stack* ThreadJitStack(void*) {
  thread_local const std::unique_ptr<pcre2_jit_stack, FreeJitStack> stack(
      pcre2_jit_stack_create(32 << 10, kJitStackMax, nullptr));
  return stack.get();
}

std::string MessageOf(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Compiled {
  std::string pattern;  // as given, for messages
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context;
};

Result<Regex> Regex::Compile(std::string_view pattern) {
  const std::string translated = TRY(TranslateOniguruma(pattern));
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> options(
      pcre2_compile_context_create(nullptr));
  CHECK(options != nullptr, "out of memory");
  pcre2_set_newline(options.get(), PCRE2_NEWLINE_LF);
  auto compiled = std::make_shared<Compiled>();
  compiled->pattern = pattern;
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
      &error, &offset, options.get()));
  if (!compiled->code) {
    return InvalidArgument("the regular expression '{}' does not compile ({})", Printable(pattern),
                           MessageOf(error));
  }
  // Where no machine code can be made the interpreter gives the same matches, more slowly.
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
  compiled->context.reset(pcre2_match_context_create(nullptr));
  CHECK(compiled->context != nullptr, "out of memory");
  pcre2_set_match_limit(compiled->context.get(), kMatchLimit);
  pcre2_set_heap_limit(compiled->context.get(), kHeapLimitKib);
  pcre2_jit_stack_assign(compiled->context.get(), ThreadJitStack, nullptr);
  return Regex(std::move(compiled));
}

namespace {

// The first character that begins at `at` or behind it.
size_t CharacterAt(std::string_view text, size_t at) {
  while (at < text.size() && (text[at] & 0xC0) == 0x80) ++at;
  return at;
}

// How far to look for the begin of a match before the limits are asked again: as far as takes about
// a millisecond, since a pattern may read all that is left of the text at each place.
class Stride {
 public:
  explicit Stride(const pcre2_match_context* shared)
      : context_(pcre2_match_context_copy(const_cast<pcre2_match_context*>(shared))) {
    CHECK(context_ != nullptr, "out of memory");
  }
  pcre2_match_context* context() const { return context_.get(); }
  void Begin(size_t at) {
    pcre2_set_offset_limit(context_.get(), at + bytes_ - 1);
    began_ns_ = SteadyClock().NowNs();
  }
  // Nothing was found in so many bytes.
  size_t End() {
    const size_t passed = bytes_;
    const int64_t took_ns = SteadyClock().NowNs() - began_ns_;
    if (took_ns < kLeastNs) bytes_ *= 2;
    if (took_ns > kMostNs) bytes_ = std::max<size_t>(bytes_ / 2, 1);
    return passed;
  }

 private:
  static constexpr int64_t kLeastNs = 250'000, kMostNs = 1'000'000;
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context_;
  size_t bytes_ = 64;
  int64_t began_ns_ = 0;
};

// Of a text with so few bytes even reading the rest at each place takes less than a second.
constexpr size_t kShortText = size_t{16} << 10;
constexpr size_t kMatchesBetweenLooks = 1024;

}  // namespace

struct Regex::Search::State {
  State(std::shared_ptr<const Compiled> regex, const WorkLimits& work)
      : compiled(std::move(regex)),
        limits(work),
        data(pcre2_match_data_create_from_pattern(compiled->code.get(), nullptr)) {
    CHECK(data != nullptr, "out of memory");
    offsets = pcre2_get_ovector_pointer(data.get());
  }

  const std::shared_ptr<const Compiled> compiled;
  const WorkLimits limits;
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data;
  const PCRE2_SIZE* offsets;
  std::optional<Stride> stride;  // of a long text
  std::string_view text;
  size_t at = 0;                    // where to look on; behind the end: nothing is left
  std::optional<size_t> match_end;  // of the last match
  size_t matches = 0;               // since the last look
  Status status;
};

Regex::Search::Search(const Regex& regex, const WorkLimits& limits)
    : state_(std::make_unique<State>(regex.compiled_, limits)) {}
Regex::Search::Search(Search&&) noexcept = default;
Regex::Search::~Search() = default;

void Regex::Search::Begin(std::string_view text) {
  state_->text = text;
  state_->at = 0;
  state_->match_end.reset();
  state_->stride.reset();
  if (text.size() > kShortText) state_->stride.emplace(state_->compiled->context.get());
}

const Status& Regex::Search::status() const {
  return state_->status;
}

bool Regex::Search::Next(Match* match) {
  State& s = *state_;
  const std::string_view text = s.text;
  while (s.at <= text.size() && s.status.ok()) {
    if (s.stride) s.stride->Begin(s.at);
    const int found = pcre2_match(s.compiled->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), s.at, PCRE2_NO_UTF_CHECK, s.data.get(),
                                  s.stride ? s.stride->context() : s.compiled->context.get());
    if (found == PCRE2_ERROR_NOMATCH) {
      s.at = s.stride ? CharacterAt(text, s.at + s.stride->End()) : text.size() + 1;
      if (s.stride) s.status = s.limits.Check();
      continue;
    }
    if (found < 0) {
      s.status = ResourceExhausted(
          "the regular expression '{}' of tokenizer.json gave up in a text of {} bytes ({}): send "
          "a shorter text, or one without very long runs of the same kind of character",
          Printable(s.compiled->pattern), text.size(), MessageOf(found));
      continue;
    }
    if (++s.matches > kMatchesBetweenLooks) {
      s.matches = 0;
      s.status = s.limits.Check();
      if (!s.status.ok()) continue;
    }
    const size_t begin = s.offsets[0], end = s.offsets[1];
    if (begin == end && s.match_end == end) {
      s.at = end == text.size() ? end + 1 : end + NextUtf8Unit(text.substr(end)).size;
      continue;
    }
    s.at = end;
    s.match_end = end;
    *match = {begin, end};
    return true;
  }
  return false;
}

}  // namespace fathom
