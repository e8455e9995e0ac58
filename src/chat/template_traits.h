// What a chat template does, found out by rendering it.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>

#include "chat/chat_template.h"
#include "chat/tool_call_reader.h"

namespace fathom {

struct TemplateTraits {
  bool reads_tools = false;  // a request's tools reach the prompt
  // What a message with calls and without text must have as its content, for its calls to be
  // written: null, or "". Some templates fail on the one, others leave the calls out with the
  // other.
  bool null_content = true;
  // What it wants a call's arguments to be: an object, which it writes as JSON, or JSON as text.
  bool object_arguments = false;
  // How it writes the calls of earlier messages, which is how its model was taught to write them.
  // None if it writes none, or in a form that is not known.
  std::optional<ToolCallForm> tool_call_form;
};

// `trusted_variables` as in ChatTemplate::Render.
TemplateTraits FindTraits(const ChatTemplate& chat_template,
                          const boost::json::object& trusted_variables);

}  // namespace fathom
