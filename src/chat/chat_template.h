// Chat templates: a bounded subset of Jinja that keeps track of who wrote which byte.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <memory>
#include <string_view>

#include "base/spanned_text.h"
#include "base/status.h"
#include "base/work_limits.h"

namespace fathom {

namespace jinja {
struct Program;
}

// Bounds of one Parse and one Render. Reaching one is kResourceExhausted.
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
inline constexpr size_t kMaxRenderedBytes = size_t{64} << 20;

// A parsed chat template of `tokenizer_config.json`. Renders what jinja2 renders the way
// transformers sets it up: trim_blocks, lstrip_blocks, loop controls, an immutable sandbox.
// Left out: inheritance, include and import, recursive loops, `*` arguments, '%' on strings. Other
// than there, what jinja2 makes a generator is a list, integers have 128 bits, and a name means
// what it does when it is read, even if a block around sets it later. Immutable after Parse.
// THREAD: any.
class ChatTemplate {
 public:
  // Errors: kInvalidArgument for bad syntax, kUnimplemented for a construct outside the subset;
  // both name the line.
  static Result<ChatTemplate> Parse(std::string_view source);

  // `variables` holds messages, tools, add_generation_prompt and chat_template_kwargs: its strings
  // are untrusted. `trusted_variables` holds bos_token and eos_token; where both have a name, the
  // trusted one wins. The template's own text is trusted; every string operation keeps track.
  // Errors: kInvalidArgument with the template's own message for raise_exception(), or with the
  // line of an operation that the values do not allow; kResourceExhausted for too much work.
  // The values that are made of the variables, which are freed meanwhile, are claimed from `limits`
  // while it renders.
  Result<SpannedText> Render(boost::json::object variables, boost::json::object trusted_variables,
                             const WorkLimits& limits = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Program> program);
  std::shared_ptr<const jinja::Program> program_;
};

}  // namespace fathom
