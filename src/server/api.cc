#include "server/api.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <ctime>
#include <new>
#include <random>
#include <utility>

#include "base/printable.h"
#include "server/chat_generation.h"
#include "server/completion_generation.h"
#include "server/json_body.h"
#include "server/json_fields.h"
#include "server/messages_request.h"
#include "server/openapi.h"
#include "server/token_fields.h"
#include "server/tool_grammar.h"
#include "server/web_page.h"

namespace fathom {

namespace json = boost::json;

namespace {

std::vector<TokenId> MarkerTokens(const Tokenizer& tokenizer, bool parse_tools) {
  std::vector<TokenId> ids;
  for (const std::string_view marker : OutputMarkers(parse_tools)) {
    if (const std::optional<TokenId> id = tokenizer.IdOf(marker)) ids.push_back(*id);
  }
  return ids;
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

Api::Api(const ServerOptions& options, HttpMetrics& http_metrics, ServedEngine served)
    : options_(options),
      http_metrics_(http_metrics),
      served_(std::move(served)),
      engine_(served_.engine),
      outputs_(served_.outputs),
      tokenizer_(served_.tokenizer),
      prompts_(tokenizer_, served_.chat_template, {served_.tool_call_form, served_.parse_reasoning},
               engine_.max_model_len()),
      started_(std::time(nullptr)),
      metrics_(served_.model_names.front()),
      responses_(options.max_stored_responses, options.max_stored_response_bytes) {}

Api::Answer Api::Handle(HttpRequest& request, const WorkLimits& limits) {
  const Route* route = FindRoute(request.path);
  CHECK(route != nullptr, "a request that Access refuses");
  try {
    return Dispatch(route->endpoint, request, limits);
  } catch (const std::bad_alloc&) {
    return Refusal(request, MemoryError(limits));
  }
}

Api::Answer Api::Dispatch(Endpoint endpoint, HttpRequest& request, const WorkLimits& limits) {
  switch (endpoint) {
    case Endpoint::kChat: return Chat(request, limits);
    case Endpoint::kCompletions: return Completions(request, limits);
    case Endpoint::kMessages: return Messages(request, limits);
    case Endpoint::kCountTokens: return CountTokens(request, limits);
    case Endpoint::kResponses: return Responses(request, limits);
    case Endpoint::kStoredResponse: return StoredResponse(request, limits);
    case Endpoint::kCancelResponse: return CancelResponse(request, limits);
    case Endpoint::kTokenize: return Tokenize(request, limits);
    case Endpoint::kDetokenize: return Detokenize(request, limits);
    case Endpoint::kResetPrefixCache: return ResetPrefixCache();
    case Endpoint::kModels: return Models(request);
    case Endpoint::kHealth:  // of one that is not ready: readiness.h
    case Endpoint::kLive: return HttpResponse{.content_type = "text/plain"};
    case Endpoint::kLoad: return Load();
    case Endpoint::kVersion: return Version();
    case Endpoint::kServerInfo: return ServerInfo();
    case Endpoint::kMetrics: return MetricsText(request);
    case Endpoint::kOpenApi: return Description();
    case Endpoint::kWebPage: return WebPage(request);
  }
  return ErrorResponse({500, "The route has no handler.", "server_error"});
}

// server_load is vLLM's name for what is in flight.
HttpResponse Api::Load() const {
  const EngineStats stats = engine_.Stats();
  return Ok(json::object{{"server_load", stats.running + stats.waiting},
                         {"running", stats.running},
                         {"waiting", stats.waiting},
                         {"kv_cache_usage", stats.kv_usage}});
}

HttpResponse Api::Version() const {
  json::object version = {{"version", options_.version}};
  if (!served_.sources.empty()) version["sources"] = served_.sources;
  return Ok(std::move(version));
}

HttpResponse Api::ServerInfo() const {
  json::array names;
  for (const std::string& name : served_.model_names) names.emplace_back(name);
  const SamplingDefaults& given = served_.defaults;
  const auto or_null = [](const auto& value) {
    return value ? json::value(AsWritten(static_cast<float>(*value))) : json::value(nullptr);
  };
  const auto tokens_or_null = [](const std::optional<int32_t>& tokens) {
    return tokens ? json::value(*tokens) : json::value(nullptr);
  };
  return Ok(json::object{{"version", options_.version},
                         {"model", served_.model_names.front()},
                         {"served_model_names", std::move(names)},
                         {"max_model_len", engine_.max_model_len()},
                         {"vocab_size", served_.vocab_size},
                         {"max_choices", served_.max_choices},
                         {"max_logprobs", served_.max_logprobs},
                         {"max_body_bytes", options_.max_body_bytes},
                         {"chat", prompts_.has_template()},
                         {"reads_tools", prompts_.traits().reads_tools},
                         {"default_sampling_params",
                          {{"temperature", or_null(given.temperature)},
                           {"top_p", or_null(given.top_p)},
                           {"top_k", or_null(given.top_k)},
                           {"min_p", or_null(given.min_p)},
                           {"repetition_penalty", or_null(given.repetition_penalty)},
                           {"max_tokens", tokens_or_null(given.max_tokens)}}},
                         {"max_output_tokens", tokens_or_null(given.most_tokens)},
                         {"default_chat_template_kwargs", served_.chat_defaults}});
}

HttpResponse Api::MetricsText(const HttpRequest& request) {
  const auto make = [this] {
    const size_t grammar_bytes =
        served_.grammars == nullptr ? 0 : served_.grammars->grammar_bytes();
    return metrics_.Render(engine_.Stats(), grammar_bytes) + http_metrics_.Render();
  };
  return {.shared = metrics_text_.Get(request.began, make), .content_type = Metrics::kContentType};
}

HttpResponse Api::Description() {
  static const auto text = std::make_shared<const std::string>(kOpenApi);
  return {.shared = text};
}

HttpResponse Api::ResetPrefixCache() {
  engine_.ResetPrefixCache();
  return {.content_type = "text/plain"};
}

HttpResponse Api::Models(const HttpRequest& request) const {
  const auto model = [this](const std::string& name) {
    return json::object{{"id", name},
                        {"object", "model"},
                        {"created", started_},
                        {"owned_by", "fathom"},
                        {"root", served_.model_names.front()},
                        {"parent", nullptr},
                        {"max_model_len", engine_.max_model_len()}};
  };
  if (request.path.size() > kModelsPath.size() + 1) {
    const std::string name = PercentDecoded(request.path.substr(kModelsPath.size() + 1));
    if (auto error = CheckModel(name)) return ErrorResponse(*error);
    return Ok(model(name));
  }
  json::array models;
  for (const std::string& name : served_.model_names) models.push_back(model(name));
  return Ok(json::object{{"object", "list"}, {"data", std::move(models)}});
}

RequestLimits Api::Limits() const {
  return {.defaults = served_.defaults,
          .vocab_size = served_.vocab_size,
          .max_model_len = engine_.max_model_len(),
          .max_choices = served_.max_choices,
          .max_logprobs = served_.max_logprobs,
          .max_eos_tokens = served_.eos_tokens.size(),
          .priorities = served_.priorities,
          .chat_defaults = &served_.chat_defaults};
}

std::optional<ApiError> Api::CheckModel(const std::string& name) const {
  const auto& names = served_.model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) {
    return std::nullopt;
  }
  return ApiError{404,
                  fmt::format("The model \"{}\" does not exist; this server has `{}`.",
                              Printable(name, 64), names.front()),
                  "invalid_request_error", "model", "model_not_found"};
}

// Before any tokenising.
std::optional<ApiError> Api::TakePlaces(const HttpRequest& request, size_t choices,
                                        PlacesInFlight* places) const {
  if (!engine_.HasRoom(static_cast<int>(choices))) {
    return EngineError(ResourceExhausted("The queue is full: try again in a moment."));
  }
  if (auto error = request.client->Take(static_cast<int64_t>(choices))) return error;
  *places = PlacesInFlight(request.client, static_cast<int64_t>(choices));
  return std::nullopt;
}

GenerationSetup Api::Setup(const char* id_prefix, const HttpRequest& request,
                           GenerationParams params) const {
  if (!params.seeded) params.sampling.seed = RandomSeed();
  GenerationSetup setup{.tokenizer = &tokenizer_,
                        .metrics = &metrics_,
                        .clock = &clock_,
                        .id = id_prefix + request.id,
                        .model = params.model.empty() ? served_.model_names.front() : params.model,
                        .fingerprint = "fathom-" + options_.version,
                        .eos_tokens = served_.eos_tokens};
  setup.params = std::move(params);
  return setup;
}

std::optional<ApiError> Api::Prepare(ChatRequest chat, const HttpRequest& request,
                                     const WorkLimits& limits, GenerationSetup* setup,
                                     ChatOutputOptions* output) const {
  if (auto error = CheckModel(chat.params.model)) return error;
  PlacesInFlight places;
  if (auto error = TakePlaces(request, chat.params.n, &places)) return error;
  GenerationPrompt prompt;
  const HeldCalls held =
      CallsOf(chat.prompt, chat.parallel_tool_calls, chat.params.grammar.has_value());
  *output = {.parallel_tool_calls = chat.parallel_tool_calls,
             .include_reasoning = chat.include_reasoning,
             .echoed = std::move(chat.echoed)};
  if (auto error =
          prompts_.EncodeChat(std::move(chat.prompt), limits, &prompt.tokens, &output->parser)) {
    return error;
  }
  if (auto error = prompts_.FitTokens(chat.params, "messages", served_.defaults, &prompt)) {
    return error;
  }
  if (!held.tools.empty()) {
    if (auto error =
            GrammarOfCalls(held, output->parser.tool_call_form, tokenizer_, &chat.params.grammar)) {
      return error;
    }
  }
  std::optional<TokenId> grammar_after;
  if (chat.params.grammar && output->parser.starts_in_reasoning) {
    grammar_after = tokenizer_.IdOf("</think>");
    if (!grammar_after) {
      return BadParameter(chat.params.grammar->param,
                          "this model's thinking ends with no token of its own, so that no grammar "
                          "can begin behind it: say thinking: false");
    }
  }
  std::shared_ptr<const Grammar> token_grammar;
  if (auto error = GrammarOfTokens(chat.params, tokenizer_, served_.eos_tokens, served_.vocab_size,
                                   &token_grammar)) {
    return error;
  }
  *setup = Setup("chatcmpl-", request, std::move(chat.params));
  setup->token_grammar = std::move(token_grammar);
  setup->grammar_after = grammar_after;
  setup->kept_special = MarkerTokens(tokenizer_, output->parser.parse_tools);
  setup->prompts.push_back(std::move(prompt));
  setup->places = std::move(places);
  return std::nullopt;
}

Api::Answer Api::Chat(HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  if (auto error = JsonBody::Parse(std::move(request.body), limits, &body))
    return ErrorResponse(*error);
  ChatRequest chat(body.storage());
  if (auto error = ParseChat(body.Take(), Limits(), &chat)) return ErrorResponse(*error);
  GenerationSetup setup;
  ChatOutputOptions output;
  if (auto error = Prepare(std::move(chat), request, limits, &setup, &output)) {
    return ErrorResponse(*error);
  }
  return std::make_unique<ChatGeneration>(std::move(setup), output);
}

Api::Answer Api::Completions(HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  CompletionRequest asked;
  if (auto error = JsonBody::Parse(std::move(request.body), limits, &body))
    return ErrorResponse(*error);
  if (auto error = ParseCompletion(body.object(), Limits(), &asked)) return ErrorResponse(*error);
  if (auto error = CheckModel(asked.params.model)) return ErrorResponse(*error);
  const size_t choices = asked.prompts.size() * asked.params.n;
  PlacesInFlight places;
  if (auto error = TakePlaces(request, choices, &places)) return ErrorResponse(*error);
  SamplingDefaults defaults = served_.defaults;
  defaults.max_tokens = 16;  // OpenAI's
  std::vector<GenerationPrompt> prompts;
  for (TextOrTokens& given : asked.prompts) {
    GenerationPrompt prompt{.echo = asked.echo};
    if (auto error = prompts_.EncodeText(given, asked.add_special_tokens, limits, &prompt.tokens)) {
      return ErrorResponse(*error);
    }
    if (auto error = prompts_.FitTokens(asked.params, "prompt", defaults, &prompt))
      return ErrorResponse(*error);
    if (asked.echo) {
      const std::string* text =
          asked.params.truncate_prompt_tokens ? nullptr : std::get_if<std::string>(&given);
      prompt.text = text ? *text : tokenizer_.Decode(prompt.tokens, /*skip_special_tokens=*/false);
    }
    prompts.push_back(std::move(prompt));
  }
  std::shared_ptr<const Grammar> token_grammar;
  if (auto error = GrammarOfTokens(asked.params, tokenizer_, served_.eos_tokens, served_.vocab_size,
                                   &token_grammar)) {
    return ErrorResponse(*error);
  }
  GenerationSetup setup = Setup("cmpl-", request, std::move(asked.params));
  setup.token_grammar = std::move(token_grammar);
  setup.prompts = std::move(prompts);
  setup.places = std::move(places);
  return std::make_unique<CompletionGeneration>(std::move(setup));
}

}  // namespace fathom
