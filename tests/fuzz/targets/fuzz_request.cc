// Bodies of requests: JSON, fields, and what a chat template makes of messages.
#include <boost/json.hpp>

#include "chat/chat_template.h"
#include "fuzz.h"
#include "server/json_body.h"
#include "server/messages_request.h"
#include "server/openai_request.h"
#include "server/responses_request.h"

namespace fathom {
namespace {

constexpr char kTemplate[] =
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] or '' }}"
    "{% for call in m['tool_calls'] or [] %}{{ call['function']['name'] }}"
    "{{ call['function']['arguments'] }}{% endfor %}\n{% endfor %}{{ tools | tojson }}{{ x }}";

RequestLimits Limits() {
  return {.defaults = {},
          .vocab_size = 1000,
          .max_model_len = 100,
          .max_choices = 16,
          .max_eos_tokens = 1};
}

void Render(ChatPrompt prompt, FuzzLimits& work) {
  static const ChatTemplate& chat = *new ChatTemplate(ChatTemplate::Parse(kTemplate).value());
  boost::json::object variables = std::move(prompt.template_kwargs);
  variables["messages"] = std::move(prompt.messages);
  variables["tools"] = std::move(prompt.tools);
  const auto text = chat.Render(variables, {}, work.limits());
  CHECK(text.ok() || !text.status().message().empty());
}

// Each answer is a request or an error that says what is wrong.
void Parse(const boost::json::object& body, const JsonBody& json, FuzzLimits& work) {
  ChatRequest chat(json.storage());
  CompletionRequest completion;
  TokenizeRequest tokenize;
  DetokenizeRequest detokenize;
  const auto error = ParseChat(body, Limits(), &chat);
  ChatRequest messages(json.storage());
  ResponsesRequest responses(json.storage());
  for (const auto& why :
       {error, ParseMessages(body, Limits(), /*generates=*/true, &messages),
        ParseResponses(body, Limits(), boost::json::array(), &responses),
        ParseCompletion(body, Limits(), &completion), ParseTokenize(body, Limits(), &tokenize),
        ParseDetokenize(body, Limits(), &detokenize)}) {
    CHECK(!why || (!why->message.empty() && why->status >= 400 && !ToJson(*why).empty()));
  }
  if (!error) Render(std::move(chat.prompt), work);
}

}  // namespace
}  // namespace fathom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fathom::FuzzLimits work;
  {
    fathom::JsonBody body;
    (void)work.limits().Take(size);  // as a body that has arrived
    if (!fathom::JsonBody::Parse(std::string(fathom::TextOf(data, size)), work.limits(), &body)) {
      try {
        fathom::Parse(body.object(), body, work);
      } catch (const std::bad_alloc&) {  // as Api has it: the request's memory is spent
        CHECK(!work.claim.failure().ok());
      }
    }
  }
  // The body's JSON counts on until the claim is reset; all else was given back.
  CHECK(work.claim.held() <= fathom::FuzzLimits::kMost, "{} bytes are held", work.claim.held());
  return 0;
}
