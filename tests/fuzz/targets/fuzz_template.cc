// Chat templates, which a checkpoint brings.
#include <boost/json.hpp>

#include "chat/chat_template.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const boost::json::object& variables = *new boost::json::object(
      boost::json::parse(R"({"messages": [{"role": "user", "content": "Hello"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
       "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}, {"role": "tool", "content": "é中"}],
      "tools": [{"type": "function", "function": {"name": "f"}}], "add_generation_prompt": true,
      "number": 1.5, "thinking": false})")
          .as_object());
  const auto parsed = fathom::ChatTemplate::Parse(fathom::TextOf(data, size));
  if (!parsed.ok()) {
    CHECK(!parsed.status().message().empty());
    return 0;
  }
  fathom::FuzzLimits work;
  try {
    const auto text = parsed->Render(variables, {{"bos_token", "<s>"}}, work.limits());
    CHECK(text.ok() || !text.status().message().empty());
  } catch (const std::bad_alloc&) {
    CHECK(!work.claim.failure().ok());
  }
  return 0;
}
