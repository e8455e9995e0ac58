#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include <pcre2.h>

#include "base/check.h"
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
  compiled->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                    &offset, options.get()));
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

Status Regex::FindAll(std::string_view text, std::vector<Match>* matches) const {
  matches->clear();
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(
      pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  CHECK(data != nullptr, "out of memory");
  const PCRE2_SIZE* const offsets = pcre2_get_ovector_pointer(data.get());
  for (size_t at = 0; at <= text.size();) {
    const int found =
        pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    at, PCRE2_NO_UTF_CHECK, data.get(), compiled_->context.get());
    if (found == PCRE2_ERROR_NOMATCH) return {};
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
