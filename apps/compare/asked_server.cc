#include "asked_server.h"

#include <boost/json.hpp>
#include <utility>

#include "base/printable.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr size_t kMaxReplyBytes = size_t{64} << 20;

json::array Numbers(std::span<const TokenId> ids) {
  json::array list;
  for (const TokenId id : ids) list.emplace_back(Raw(id));
  return list;
}

// A field or an endpoint that the server does not know, as against a key that is missing or a queue
// that is full.
bool Refused(int status) {
  return status == 400 || status == 404 || status == 405 || status == 422 || status == 501;
}

Status Refusal(const std::string& path, const HttpReply& reply) {
  return Unavailable("{}: HTTP {}: {}", path, reply.status,
                     Printable(ErrorMessage(reply.body), 300));
}

std::string TextAt(const json::value& value, std::string_view pointer) {
  boost::system::error_code error;
  const json::value* found = value.find_pointer(pointer, error);
  if (found == nullptr || !found->is_string()) return "";
  return std::string(found->get_string());
}

}  // namespace

Result<AskedServer> AskedServer::Connect(const AskOptions& options) {
  AskedServer server(options,
                     TRY(Target::Resolve(options.url, options.api_key, options.timeout_s)));
  const HttpReply reply = TRY(Fetch(server.target_, {.path = "/v1/models"}));
  if (reply.status != 200) return Refusal("GET /v1/models", reply);
  boost::system::error_code error;
  const json::value models = json::parse(reply.body, error);
  if (error) return Unavailable("GET /v1/models: the answer is no JSON");
  server.model_ = options.model.empty() ? TextAt(models, "/data/0/id") : options.model;
  if (server.model_.empty()) {
    return Unavailable("the server lists no model under /v1/models: name one with --model-name");
  }
  server.owner_ = TextAt(models, "/data/0/owned_by");
  server.native_ =
      options.protocol == "sglang" || (options.protocol == "auto" && server.owner_ == "sglang");
  return server;
}

std::string AskedServer::prompt_source() const {
  if (native_) return "SGLang's /generate";
  switch (prompt_source_) {
    case PromptSource::kField: return "prompt_logprobs";
    case PromptSource::kEcho: return "echo with logprobs";
    case PromptSource::kNone: return "";
  }
  return "";
}

Result<HttpReply> AskedServer::Post(const std::string& path, const json::object& body) const {
  const HttpRequest request = {
      .path = path, .body = json::serialize(body), .max_bytes = kMaxReplyBytes};
  return Fetch(target_, request);
}

Result<std::string> AskedServer::Accepted(const std::string& path, const json::object& body) const {
  HttpReply reply = TRY(Post(path, body));
  if (reply.status != 200) return Refusal("POST " + path, reply);
  return std::move(reply.body);
}

// Every server adds the model's own sampling defaults to what is not said.
json::object AskedServer::Completion(std::span<const TokenId> prompt, int32_t max_tokens) const {
  return {{"model", model_},          {"prompt", Numbers(prompt)},
          {"max_tokens", max_tokens}, {"temperature", 0},
          {"repetition_penalty", 1},  {"logprobs", options_.top},
          {"return_token_ids", true}, {"return_tokens_as_token_ids", true}};
}

json::object AskedServer::Native(std::span<const TokenId> prompt, int32_t max_tokens) const {
  return {{"input_ids", Numbers(prompt)},
          {"sampling_params",
           {{"max_new_tokens", max_tokens}, {"temperature", 0}, {"repetition_penalty", 1}}},
          {"return_logprob", true},
          {"logprob_start_len", 0},
          {"top_logprobs_num", options_.top}};
}

Result<Answer> AskedServer::Greedy(std::span<const TokenId> prompt, int32_t max_tokens) {
  if (!native_) return GreedyCompletion(prompt, max_tokens);
  const std::string body = TRY(Accepted("/generate", Native(prompt, max_tokens)));
  return ReadNative(body, Asked(prompt));
}

Result<Answer> AskedServer::GreedyCompletion(std::span<const TokenId> prompt, int32_t max_tokens) {
  const std::string path = "/v1/completions";
  json::object request = Completion(prompt, max_tokens);
  if (prompt_source_ == PromptSource::kField) {
    request["prompt_logprobs"] = options_.top;
    const HttpReply reply = TRY(Post(path, request));
    if (reply.status == 200) {
      Answer answer = TRY(ReadCompletion(reply.body, Asked(prompt)));
      if (!answer.prompt.empty() || prompt.size() < 2) return answer;
    } else if (!Refused(reply.status)) {
      return Refusal("POST " + path, reply);
    }
    // It does not know the field. Whether it is this that was refused, the next request shows.
    prompt_source_ = PromptSource::kEcho;
    request.erase("prompt_logprobs");
  }
  const std::string body = TRY(Accepted(path, request));
  Answer answer = TRY(ReadCompletion(body, Asked(prompt)));
  TRY(AddEcho(prompt, &answer));
  return answer;
}

Status AskedServer::AddEcho(std::span<const TokenId> prompt, Answer* answer) {
  if (prompt_source_ != PromptSource::kEcho || prompt.size() < 2) return {};
  json::object request = Completion(prompt, 1);
  request["echo"] = true;
  const HttpReply reply = TRY(Post("/v1/completions", request));
  if (reply.status == 200) {
    answer->prompt = TRY(ReadEcho(reply.body, Asked(prompt)));
  } else if (!Refused(reply.status)) {
    return Refusal("POST /v1/completions with echo", reply);
  }
  if (answer->prompt.empty()) prompt_source_ = PromptSource::kNone;
  return {};
}

Result<Answer> AskedServer::Structured(std::span<const TokenId> prompt, const std::string& schema,
                                       int32_t max_tokens) {
  const std::string path = native_ ? "/generate" : "/v1/completions";
  json::object request = native_ ? Native(prompt, max_tokens) : Completion(prompt, max_tokens);
  if (native_) {
    request["sampling_params"].as_object()["json_schema"] = schema;
    request["logprob_start_len"] = -1;
  } else {
    request["response_format"] = {
        {"type", "json_schema"},
        {"json_schema", {{"name", "answer"}, {"schema", json::parse(schema)}}}};
  }
  const HttpReply reply = TRY(Post(path, request));
  if (Refused(reply.status)) {
    return Unimplemented("{}", Printable(ErrorMessage(reply.body), 300));
  }
  if (reply.status != 200) return Refusal("POST " + path, reply);
  return native_ ? ReadNative(reply.body, Asked(prompt))
                 : ReadCompletion(reply.body, Asked(prompt));
}

Result<std::optional<std::vector<TokenId>>> AskedServer::Tokenize(const ComparePrompt& prompt) {
  std::optional<std::vector<TokenId>> tokens;
  json::object request = {{"model", model_}};
  if (!prompt.messages.empty()) {
    request["messages"] = prompt.messages;
    request["add_generation_prompt"] = true;
  } else if (!prompt.text.empty()) {
    request["prompt"] = prompt.text;
    request["add_special_tokens"] = true;
  } else {
    return tokens;
  }
  const HttpReply reply = TRY(Post("/tokenize", request));
  if (Refused(reply.status)) return tokens;
  if (reply.status != 200) return Refusal("POST /tokenize", reply);
  tokens = TRY(ReadTokenized(reply.body, vocab_size_));
  return tokens;
}

}  // namespace fathom
