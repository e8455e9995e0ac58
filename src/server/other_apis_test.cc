// Requests of the Messages and the Responses API, as chat requests.
#include <gtest/gtest.h>

#include "server/json_body.h"
#include "server/messages_request.h"
#include "server/responses_request.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr RequestLimits kLimits{
    .defaults = {}, .vocab_size = 100, .max_model_len = 64, .max_choices = 8, .max_eos_tokens = 1};

struct Read {
  std::optional<ApiError> error;
  ChatRequest chat;
  // The message of the error, or "".
  std::string said() const { return error ? error->message : ""; }
};

Read Messages(const std::string& fields) {
  Read read;
  JsonBody body;
  read.error = JsonBody::Parse("{\"max_tokens\": 9, " + fields + "}", {}, &body);
  if (read.error) return read;
  ChatRequest chat(body.storage());
  read.error = ParseMessages(body.object(), kLimits, /*generates=*/true, &chat);
  read.chat = std::move(chat);
  return read;
}

const std::string kHi = R"("messages": [{"role": "user", "content": "hi"}])";

TEST(ParseMessages, AUserSaysSomething) {
  EXPECT_EQ(Messages(R"("messages": [{"role": "user", "content": []}])").said(),
            "messages[0].content must not be empty");
  EXPECT_EQ(Messages(kHi).said(), "");
}

}  // namespace
}  // namespace fathom
