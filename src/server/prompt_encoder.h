// A request's prompt to tokens that fit the model's context.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/work_limits.h"
#include "chat/chat_template.h"
#include "chat/output_parser.h"
#include "chat/template_traits.h"
#include "server/api_error.h"
#include "server/generation.h"
#include "server/openai_request.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// Of a tokeniser or template that cannot take the request's text, which is in `param`; or of the
// memory that `limits` had no more of for it.
ApiError TextError(const Status& status, std::string param, const WorkLimits& limits = {});

// How a model's answers are read; see ServedEngine.
struct AnswerForm {
  std::optional<ToolCallForm> tool_calls;
  bool parse_reasoning = true;
};

// Immutable. THREAD: any.
class PromptEncoder {
 public:
  // `tokenizer` must outlive this. `chat_template` may be absent.
  PromptEncoder(const Tokenizer& tokenizer, std::optional<ChatTemplate> chat_template,
                AnswerForm form, int32_t max_model_len);

  bool has_template() const { return chat_template_.has_value(); }
  const TemplateTraits& traits() const { return traits_; }

  // Renders and tokenises. `*parser` is set to how the answer is to be read.
  std::optional<ApiError> EncodeChat(ChatPrompt prompt, const WorkLimits& limits,
                                     std::vector<TokenId>* tokens,
                                     OutputParserOptions* parser) const;
  std::optional<ApiError> EncodeText(const TextOrTokens& prompt, bool add_special_tokens,
                                     const WorkLimits& limits, std::vector<TokenId>* tokens) const;
  // How many tokens a prompt may be followed by, or why it does not fit. Of `defaults` those of
  // max_tokens count.
  std::optional<ApiError> FitTokens(const GenerationParams& params, const char* what,
                                    const SamplingDefaults& defaults,
                                    GenerationPrompt* prompt) const;

 private:
  std::optional<ApiError> CheckTools() const;

  const Tokenizer& tokenizer_;
  const std::optional<ChatTemplate> chat_template_;
  const boost::json::object trusted_;  // what templates are told of the tokenizer
  const TemplateTraits traits_;
  const AnswerForm form_;
  const int32_t max_model_len_;
  const size_t max_token_bytes_;
};

}  // namespace fathom
