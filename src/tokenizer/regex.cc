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

Status Regex::FindAll(std::string_view text, std::vector<Match>* matches,
                      const WorkLimits& limits) const {
  matches->clear();
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(
      pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  CHECK(data != nullptr, "out of memory");
  const PCRE2_SIZE* const offsets = pcre2_get_ovector_pointer(data.get());
  std::optional<Stride> stride;
  if (text.size() > kShortText) stride.emplace(compiled_->context.get());
  size_t looked_at = 0;  // so many matches
  for (size_t at = 0; at <= text.size();) {
    if (stride) stride->Begin(at);
    const int found = pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), at, PCRE2_NO_UTF_CHECK, data.get(),
                                  stride ? stride->context() : compiled_->context.get());
    if (found == PCRE2_ERROR_NOMATCH) {
      if (!stride) return {};
      at = CharacterAt(text, at + stride->End());
      TRY(limits.Check());
      continue;
    }
    if (matches->size() >= looked_at + kMatchesBetweenLooks) {
      looked_at = matches->size();
      TRY(limits.Check());
    }
    if (found < 0) {
      return ResourceExhausted(
          "the regular expression '{}' of tokenizer.json gave up in a text of {} bytes ({}): send "
          "a shorter text, or one without very long runs of the same kind of character",
          Printable(compiled_->pattern), text.size(), MessageOf(found));
    }
    const size_t begin = offsets[0], end = offsets[1];
    if (begin == end && !matches->empty() && matches->back().end == end) {
      at = end == text.size() ? end + 1 : end + NextUtf8Unit(text.substr(at)).size;
      continue;
    }
    matches->push_back({begin, end});
    at = end;
  }
  return {};
}

}  // namespace fathom
