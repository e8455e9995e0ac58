#include "server/api.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <ctime>
#include <iterator>
#include <limits>
#include <new>
#include <random>
#include <utility>

#include "base/printable.h"
#include "server/chat_generation.h"
#include "server/completion_generation.h"
#include "server/json_body.h"
#include "server/json_fields.h"

namespace fathom {

namespace json = boost::json;

namespace {

constexpr std::string_view kModelsPath = "/v1/models";

std::vector<TokenId> MarkerTokens(const Tokenizer& tokenizer, bool parse_tools) {
  std::vector<TokenId> ids;
  for (const std::string_view marker : OutputMarkers(parse_tools)) {
    if (const std::optional<TokenId> id = tokenizer.IdOf(marker)) ids.push_back(*id);
  }
  return ids;
}

// Takes the same time for every `given` of a length.
bool SameSecret(std::string_view given, std::string_view wanted) {
  unsigned char different = given.size() != wanted.size();
  for (size_t i = 0; i < given.size(); ++i) {
    different |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  }
  return different == 0;
}

// What follows "Bearer", in any case, or X-Api-Key.
std::string_view KeyOf(const HttpRequest& head) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view given = head.authorization;
  const bool bearer =
      given.size() >= kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), given.begin(), [](char wanted, char c) {
        return std::tolower(static_cast<unsigned char>(c)) == wanted;
      });
  if (!bearer) return head.api_key;
  const size_t key = given.find_first_not_of(' ', kScheme.size());
  return key == given.npos ? std::string_view() : given.substr(key);
}

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// "org%2Fname" is "org/name"; what is no escape stays.
std::string PercentDecoded(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;  // of no sign
    const char* digits = text.data() + i + 1;
    const bool escape = text[i] == '%' && i + 2 < text.size() &&
                        std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2;
    plain += escape ? static_cast<char>(code) : text[i];
    if (escape) i += 2;
  }
  return plain;
}

HttpResponse Ok(const json::value& body) {
  return {.body = json::serialize(body)};
}

}  // namespace

struct Api::Route {
  std::string_view method, path;
  bool open;  // needs no key
  Answer (Api::*handler)(const HttpRequest&, const WorkLimits&);
};

const Api::Route Api::kRoutes[] = {
    {"POST", "/v1/chat/completions", false, &Api::Chat},
    {"POST", "/v1/completions", false, &Api::Completions},
    {"GET", kModelsPath, false, &Api::Models},
    {"POST", "/tokenize", false, &Api::Tokenize},
    {"POST", "/detokenize", false, &Api::Detokenize},
    {"GET", "/health", true, &Api::Health},
    {"GET", "/ping", true, &Api::Health},
    {"GET", "/version", true, &Api::Version},
    {"GET", "/metrics", true, &Api::MetricsText},
};

Api::Api(const ServerOptions& options, EngineClient& engine, const Tokenizer& tokenizer,
         std::optional<ChatTemplate> chat_template)
    : options_(options),
      cors_(options.allowed_origins),
      hosts_(options.loopback, options.allowed_hosts),
      engine_(engine),
      tokenizer_(tokenizer),
      prompts_(tokenizer, std::move(chat_template), engine.max_model_len()),
      started_(std::time(nullptr)),
      metrics_(options.served_model_names.front()) {}

const Api::Route* Api::FindRoute(std::string_view path) {
  for (const Route& route : kRoutes) {
    if (path == route.path) return &route;
    if (route.path == kModelsPath && path.starts_with("/v1/models/")) return &route;
  }
  return nullptr;
}

std::string_view Api::RouteName(std::string_view path) {
  const Route* route = FindRoute(path);
  return route == nullptr ? "other" : route->path;
}

bool Api::IsOpen(std::string_view path) {
  const Route* route = FindRoute(path);
  return route != nullptr && route->open;
}

// Who may ask: by the name that the server is called, the page that asks, and the key.
std::optional<ApiError> Api::CheckAccess(const HttpRequest& head, bool open) const {
  if (!hosts_.Allows(head.host)) {
    return ApiError{403,
                    fmt::format("This server is not called {}: fathom serve --allowed-hosts NAME "
                                "lets it be.",
                                Printable(head.host, 64)),
                    "permission_error", "", "host_not_allowed"};
  }
  if (open) return std::nullopt;
  if (!head.origin.empty() && !cors_.Allows(head.origin)) return CorsPolicy::NotAllowed();
  if (!options_.api_key.empty() && !SameSecret(KeyOf(head), options_.api_key)) {
    return ApiError{401, "The API key is missing or wrong: send Authorization: Bearer KEY.",
                    "authentication_error", "", "invalid_api_key"};
  }
  return std::nullopt;
}

std::optional<HttpResponse> Api::CheckHead(const HttpRequest& head) const {
  const Route* route = FindRoute(head.path);
  const std::string methods = route != nullptr && route->method == "GET" ? "GET, HEAD" : "POST";
  // Browsers ask without the key.
  if (route != nullptr && head.method == "OPTIONS" && hosts_.Allows(head.host)) {
    return cors_.Preflight(head, methods);
  }
  const bool open = route != nullptr && route->open;
  if (auto error = CheckAccess(head, open)) return ErrorResponse(*error);
  if (route == nullptr) {
    return ErrorResponse({404, "There is no such path. See /v1/models and /v1/chat/completions.",
                          "invalid_request_error", "", "not_found"});
  }
  if (head.method != route->method && !(head.method == "HEAD" && route->method == "GET")) {
    HttpResponse response =
        ErrorResponse({405, fmt::format("{} takes {} only.", route->path, route->method),
                       "invalid_request_error", "", "method_not_allowed"});
    response.headers.emplace_back("Allow", methods);
    return response;
  }
  std::string type = head.content_type.substr(0, head.content_type.find(';'));
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // A type that is not JSON is one of those that a browser sends for any page without asking first;
  // so is none at all.
  const bool untyped = type.empty() && (head.origin.empty() || cors_.Allows(head.origin));
  if (route->method == "POST" && !untyped && type.find("json") == std::string::npos) {
    return ErrorResponse({415,
                          "The body must be sent with Content-Type: application/json (curl: -H "
                          "'Content-Type: application/json').",
                          "invalid_request_error", "", "unsupported_media_type"});
  }
  return std::nullopt;
}

Api::Answer Api::Handle(const HttpRequest& request, const WorkLimits& limits) {
  const Route* route = FindRoute(request.path);
  CHECK(route != nullptr, "a request that CheckHead refuses");
  try {
    return (this->*route->handler)(request, limits);
  } catch (const std::bad_alloc&) {
    return ErrorResponse(MemoryError(limits));
  }
}

Api::Answer Api::Health(const HttpRequest&, const WorkLimits&) {
  return HttpResponse{.content_type = "text/plain"};
}

Api::Answer Api::Version(const HttpRequest&, const WorkLimits&) {
  json::object version = {{"version", options_.version}};
  if (!options_.sources.empty()) version["sources"] = options_.sources;
  return Ok(std::move(version));
}

Api::Answer Api::MetricsText(const HttpRequest&, const WorkLimits&) {
  return HttpResponse{.body = metrics_.Render(engine_.Stats()),
                      .content_type = Metrics::kContentType};
}

Api::Answer Api::Models(const HttpRequest& request, const WorkLimits&) {
  const auto model = [this](const std::string& name) {
    return json::object{{"id", name},
                        {"object", "model"},
                        {"created", started_},
                        {"owned_by", "fathom"},
                        {"root", options_.served_model_names.front()},
                        {"parent", nullptr},
                        {"max_model_len", engine_.max_model_len()}};
  };
  if (request.path.size() > kModelsPath.size() + 1) {
    const std::string name = PercentDecoded(request.path.substr(kModelsPath.size() + 1));
    if (auto error = CheckModel(name)) return ErrorResponse(*error);
    return Ok(model(name));
  }
  json::array models;
  for (const std::string& name : options_.served_model_names) models.push_back(model(name));
  return Ok(json::object{{"object", "list"}, {"data", std::move(models)}});
}

RequestLimits Api::Limits() const {
  return {.defaults = options_.defaults,
          .vocab_size = options_.vocab_size,
          .max_model_len = engine_.max_model_len(),
          .max_choices = options_.max_choices,
          .max_eos_tokens = options_.eos_tokens.size()};
}

std::optional<ApiError> Api::CheckModel(const std::string& name) const {
  const auto& names = options_.served_model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) {
    return std::nullopt;
  }
  return ApiError{404,
                  fmt::format("The model \"{}\" does not exist; this server has `{}`.",
                              Printable(name, 64), names.front()),
                  "invalid_request_error", "model", "model_not_found"};
}

std::optional<ApiError> Api::CheckRoom(size_t choices) const {
  if (engine_.HasRoom(static_cast<int>(choices))) return std::nullopt;
  return EngineError(ResourceExhausted("The queue is full: try again in a moment."));
}

GenerationSetup Api::Setup(const char* id_prefix, const HttpRequest& request,
                           GenerationParams params) {
  if (!params.seeded) params.sampling.seed = RandomSeed();
  GenerationSetup setup{
      .tokenizer = &tokenizer_,
      .metrics = &metrics_,
      .clock = &clock_,
      .id = id_prefix + request.id,
      .model = params.model.empty() ? options_.served_model_names.front() : params.model,
      .eos_tokens = options_.eos_tokens};
  setup.params = std::move(params);
  return setup;
}

Api::Answer Api::Chat(const HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  if (auto error = JsonBody::Parse(request.body, limits, &body)) return ErrorResponse(*error);
  ChatRequest chat(body.storage());
  if (auto error = ParseChat(body.object(), Limits(), &chat)) return ErrorResponse(*error);
  if (auto error = CheckModel(chat.params.model)) return ErrorResponse(*error);
  if (auto error = CheckRoom(chat.params.n)) return ErrorResponse(*error);
  GenerationPrompt prompt;
  ChatOutputOptions output{.parallel_tool_calls = chat.parallel_tool_calls,
                           .include_reasoning = chat.include_reasoning};
  if (auto error =
          prompts_.EncodeChat(std::move(chat.prompt), limits, &prompt.tokens, &output.parser)) {
    return ErrorResponse(*error);
  }
  if (auto error = prompts_.FitTokens(chat.params, "messages", std::numeric_limits<int32_t>::max(),
                                      &prompt)) {
    return ErrorResponse(*error);
  }
  GenerationSetup setup = Setup("chatcmpl-", request, std::move(chat.params));
  setup.kept_special = MarkerTokens(tokenizer_, output.parser.parse_tools);
  setup.prompts.push_back(std::move(prompt));
  return std::make_unique<ChatGeneration>(std::move(setup), output);
}

Api::Answer Api::Completions(const HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  CompletionRequest asked;
  if (auto error = JsonBody::Parse(request.body, limits, &body)) return ErrorResponse(*error);
  if (auto error = ParseCompletion(body.object(), Limits(), &asked)) return ErrorResponse(*error);
  if (auto error = CheckModel(asked.params.model)) return ErrorResponse(*error);
  if (auto error = CheckRoom(asked.prompts.size() * asked.params.n)) return ErrorResponse(*error);
  std::vector<GenerationPrompt> prompts;
  for (TextOrTokens& given : asked.prompts) {
    GenerationPrompt prompt{.echo = asked.echo};
    if (auto error = prompts_.EncodeText(given, asked.add_special_tokens, limits, &prompt.tokens)) {
      return ErrorResponse(*error);
    }
    if (auto error = prompts_.FitTokens(asked.params, "prompt", 16, &prompt))
      return ErrorResponse(*error);
    if (asked.echo) {
      const std::string* text = std::get_if<std::string>(&given);
      prompt.text = text ? *text : tokenizer_.Decode(prompt.tokens, /*skip_special_tokens=*/false);
    }
    prompts.push_back(std::move(prompt));
  }
  GenerationSetup setup = Setup("cmpl-", request, std::move(asked.params));
  setup.prompts = std::move(prompts);
  return std::make_unique<CompletionGeneration>(std::move(setup));
}

Api::Answer Api::Tokenize(const HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  TokenizeRequest asked;
  if (auto error = JsonBody::Parse(request.body, limits, &body)) return ErrorResponse(*error);
  if (auto error = ParseTokenize(body.object(), Limits(), &asked)) return ErrorResponse(*error);
  if (auto error = CheckModel(asked.model)) return ErrorResponse(*error);
  std::vector<TokenId> tokens;
  if (auto* chat = std::get_if<ChatPrompt>(&asked.prompt)) {
    OutputParserOptions unused;
    if (auto error = prompts_.EncodeChat(std::move(*chat), limits, &tokens, &unused))
      return ErrorResponse(*error);
  } else {
    if (auto error = prompts_.EncodeText(std::get<std::string>(asked.prompt),
                                         asked.add_special_tokens, limits, &tokens)) {
      return ErrorResponse(*error);
    }
  }
  std::string ids = "[", strings = asked.return_token_strs ? "[" : "null";
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i % 1024 == 1023) {
      if (const Status status = limits.Check(); !status.ok()) {
        return ErrorResponse(TextError(status, "prompt"));
      }
    }
    const char* comma = i > 0 ? "," : "";
    fmt::format_to(std::back_inserter(ids), "{}{}", comma, Raw(tokens[i]));
    if (!asked.return_token_strs) continue;
    strings += comma + json::serialize(json::value(tokenizer_.Decode({&tokens[i], 1}, false)));
  }
  if (asked.return_token_strs) strings += "]";
  return HttpResponse{.body = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":{}],)"
                                          R"("token_strs":{}}})",
                                          tokens.size(), engine_.max_model_len(), ids, strings)};
}

Api::Answer Api::Detokenize(const HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  DetokenizeRequest asked;
  if (auto error = JsonBody::Parse(request.body, limits, &body)) return ErrorResponse(*error);
  if (auto error = ParseDetokenize(body.object(), Limits(), &asked)) return ErrorResponse(*error);
  if (auto error = CheckModel(asked.model)) return ErrorResponse(*error);
  const auto most = static_cast<size_t>(engine_.max_model_len());
  if (asked.tokens.size() > most) {
    return ErrorResponse(BadParameter(
        "tokens", fmt::format("tokens has {} ids; at most {} are allowed, the model's context: "
                              "send them in parts",
                              asked.tokens.size(), most)));
  }
  return Ok(json::object{{"prompt", tokenizer_.Decode(asked.tokens, false)}});
}

}  // namespace fathom
