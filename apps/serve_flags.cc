#include "serve_flags.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/log_event.h"
#include "engine_flags.h"
#include "grammar/grammar_compiler.h"

namespace fathom {
namespace {

constexpr char kEmptyKey[] =
    "the key is empty, perhaps a variable that is not set: leave it out to serve without a key";

// vLLM takes a JSON list, of which CLI11 makes quoted strings.
void CheckOrigin(std::string& origin) {
  CLI::detail::remove_quotes(CLI::detail::trim(origin));
  const size_t host = origin.find("://") + 3;
  const bool plain = origin.find("://") != std::string::npos && host < origin.size() &&
                     origin.find('/', host) == std::string::npos;
  if (plain || origin == "*" || origin == "null") return;
  throw CLI::ValidationError(
      "--allowed-origins",
      origin + " is not an origin as http://localhost:3000: scheme, host and port, no path");
}

// Of a Host header without its port, as HostPolicy compares it.
void CheckHost(std::string& host) {
  CLI::detail::remove_quotes(CLI::detail::trim(host));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  in6_addr ipv6{};
  const bool plain = !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  });
  if (!plain && host != "*" && inet_pton(AF_INET6, host.c_str(), &ipv6) != 1) {
    throw CLI::ValidationError(
        "--allowed-hosts",
        host + " is not a name as models.example.com: no scheme, no port, no path");
  }
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
}

constexpr char kServerGroup[] = "Server", kAccessGroup[] = "Access", kLimitGroup[] = "Limits";

// CLI11 gives a flag with a list all words up to the next one, MODEL too.
auto AllButModel(CLI::App& command) {
  return [&command](std::vector<std::string> words) {
    CLI::Option* model = command.get_option("model");
    if (model->empty() && model->get_required() && words.size() > 1) {
      model->add_result(words.back());
      words.pop_back();
    }
    return words;
  };
}

void AddKeyFlags(CLI::App& command, ServerOptions& server) {
  const auto all_but_model = AllButModel(command);
  command
      .add_option_function<std::vector<std::string>>(
          "--api-key",
          [all_but_model, &server](const std::vector<std::string>& words) {
            std::vector<std::string> keys = all_but_model(words);
            server.api_key = keys.front();
            server.other_api_keys.assign(keys.begin() + 1, keys.end());
          },
          "What clients must send as Authorization: Bearer KEY, one of several; FATHOM_API_KEY in "
          "the environment keeps it out of the process list")
      ->type_name("KEY")
      ->check([](const std::string& key) { return key.empty() ? kEmptyKey : ""; })
      ->group(kAccessGroup);
  command
      .add_option("--api-key-file", server.api_key_file,
                  "Named keys and their limits, a line each: NAME KEY [requests-per-minute=N] "
                  "[tokens-per-minute=N] [in-flight=N]; read again on SIGHUP")
      ->type_name("FILE")
      ->check([](const std::string& file) { return file.empty() ? "the name is empty" : ""; })
      ->group(kAccessGroup);
}

// Under which names, and by whom.
void AddAccessFlags(CLI::App& command, ServeOptions& options) {
  ServerOptions& server = options.server;
  const auto all_but_model = AllButModel(command);
  command
      .add_option_function<std::vector<std::string>>(
          "--served-model-name",
          [all_but_model, &options](const std::vector<std::string>& words) {
            options.served_model_names = all_but_model(words);
          },
          "Names that requests may use; the folder's if none is given. If MODEL stands nowhere "
          "else, the last of several is MODEL")
      ->check([](const std::string& name) { return name.empty() ? "a name is empty" : ""; })
      ->group(kAccessGroup);
  command
      .add_option_function<std::vector<std::string>>(
          "--open-routes",
          [all_but_model, &server](const std::vector<std::string>& words) {
            server.open_routes = all_but_model(words);
            if (words.size() == 1 && words[0] == "none") server.open_routes->clear();
          },
          "Routes that need no key, or none; /health /ping /live /load /version /metrics "
          "/openapi.json / unless given")
      ->type_name("PATH")
      ->group(kAccessGroup);
  command
      .add_option_function<std::vector<std::string>>(
          "--allowed-origins",
          [all_but_model, &server](const std::vector<std::string>& words) {
            server.allowed_origins = all_but_model(words);
            for (std::string& origin : server.allowed_origins) CheckOrigin(origin);
          },
          "Origins of web pages that may use this server from a browser, as "
          "http://localhost:3000 or '*'; none unless given")
      ->type_name("ORIGIN")
      ->group(kAccessGroup);
  command
      .add_option_function<std::vector<std::string>>(
          "--allowed-hosts",
          [all_but_model, &server](const std::vector<std::string>& words) {
            server.allowed_hosts = all_but_model(words);
            for (std::string& host : server.allowed_hosts) CheckHost(host);
          },
          "Further names that this server may be called by in Host, as models.example.com or '*'; "
          "on loopback those of this machine alone unless given")
      ->type_name("NAME")
      ->group(kAccessGroup);
  AddKeyFlags(command, server);
}

// Spelled as in vLLM.
void AddTlsFlags(CLI::App& command, TlsFiles& tls) {
  CLI::Option* certificate = command.add_option(
      "--ssl-certfile", tls.certificate,
      "The server's certificate and those that signed it, in PEM: TLS 1.2 and 1.3; read again on "
      "SIGHUP");
  CLI::Option* key =
      command.add_option("--ssl-keyfile", tls.key, "Its private key, in PEM, without a password");
  CLI::Option* client_ca = command.add_option(
      "--ssl-ca-certs", tls.client_ca,
      "Who signs clients' certificates, in PEM: clients without one are turned away");
  certificate->needs(key);
  key->needs(certificate);
  client_ca->needs(certificate);
  for (CLI::Option* option : {certificate, key, client_ca}) {
    option->type_name("FILE")
        ->check([](const std::string& file) { return file.empty() ? "the name is empty" : ""; })
        ->group(kAccessGroup);
  }
}

// Names as in vLLM. DeepSeek's models all think in one form, whose beginning the prompt's end
// shows.
void AddChatFlags(CLI::App& command, ServeOptions* options) {
  constexpr char kChatGroup[] = "Chat";
  AddTemplateFlag(command, &options->engine, kChatGroup);
  command
      .add_option("--tool-call-parser", options->tool_call_parser,
                  "How the model writes calls of tools: deepseek_v3 (V3, V3-0324, R1), "
                  "deepseek_v31; auto: as its chat template does")
      ->check(CLI::IsMember({"auto", "deepseek_v3", "deepseek_v31"}))
      ->capture_default_str()
      ->group(kChatGroup);
  command
      .add_option("--reasoning-parser", options->reasoning_parser,
                  "none leaves thinking in the content; all others split it off, for every model")
      ->check(CLI::IsMember({"auto", "deepseek_r1", "deepseek_v3", "deepseek_v31", "none"}))
      ->capture_default_str()
      ->group(kChatGroup);
  command
      .add_option("--max-stored-responses", options->server.max_stored_responses,
                  "Of /v1/responses, to be asked for again or gone on with; 64 MiB at most")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(kChatGroup);
  command
      .add_option("--default-chat-template-kwargs", options->default_template_kwargs,
                  "chat_template_kwargs that requests leave open: a JSON object")
      ->type_name("JSON")
      ->group(kChatGroup);
}

void AddSamplingFlags(CLI::App& command, ServeOptions* options) {
  constexpr char kSamplingGroup[] = "Sampling";
  command
      .add_option("--generation-config", options->generation_config,
                  "Sampling that requests leave open: auto takes the model's "
                  "generation_config.json, vllm takes temperature 1 and no limits")
      ->check(CLI::IsMember({"auto", "vllm"}))
      ->capture_default_str()
      ->group(kSamplingGroup);
  command
      .add_option("--override-generation-config", options->override_generation_config,
                  "What counts before it, a JSON object of: temperature, top_p, top_k, min_p, "
                  "repetition_penalty, and max_new_tokens, which no answer exceeds")
      ->type_name("JSON")
      ->group(kSamplingGroup);
  command
      .add_option("--max-logprobs", options->max_logprobs,
                  "Likeliest tokens that a request may ask for, at most")
      ->check(CLI::Range(0, kMaxTopLogprobs))
      ->capture_default_str()
      ->group(kSamplingGroup);
}

void AddLimitFlags(CLI::App& command, ServeOptions* options) {
  ServerOptions& server = options->server;
  command
      .add_option("--max-queue", options->engine.max_queue,
                  "Requests that wait for a place; more are answered 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kLimitGroup);
  command
      .add_option("--scheduling-policy", options->scheduling_policy,
                  "fcfs: clients take turns, each with its requests in the order they come; "
                  "priority: those of a request's lower `priority` first")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->capture_default_str()
      ->group(kLimitGroup);
  command
      .add_option("--max-connections", server.max_connections,
                  "Idle ones give way to more; where none is idle, more are answered 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kLimitGroup);
  command
      .add_option("--max-connections-per-client", server.max_connections_per_client,
                  "Of one address, and no more than --max-connections; its idle ones give way to "
                  "more, else they are answered 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kLimitGroup);
  command
      .add_option("--max-requests-per-client", server.max_requests_per_client,
                  "Answers in flight or queued for one address, or for a key without a number of "
                  "its own; more are answered 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kLimitGroup);
  command
      .add_option(
          "--refusal-gap", server.refusal_gap_ms,
          "Milliseconds between two answers of 429 to one client that asks on at once; they "
          "wait for it, a second at most. 0: no wait")
      ->type_name("MS")
      ->check(CLI::Range(0, server.refusal_delay_ms))
      ->capture_default_str()
      ->group(kLimitGroup);
}

void AddMemoryFlags(CLI::App& command, ServeOptions* options) {
  ServerOptions& server = options->server;
  command.add_option("--max-body-bytes", server.max_body_bytes, "Of one request")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(size_t{1}, size_t{1} << 40))
      ->capture_default_str()
      ->group(kLimitGroup);
  command
      .add_option("--max-request-memory-bytes", server.max_request_memory_bytes,
                  "Of all requests together: bodies, what is made of them, answers not yet sent")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str()
      ->group(kLimitGroup);
  command
      .add_option("--max-client-memory-bytes", server.max_client_memory_bytes,
                  "Of these, for the large requests of one key or address; 0: a quarter, or one "
                  "request; raise it behind a proxy")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str()
      ->group(kLimitGroup);
  options->engine.grammar_memory_bytes = GrammarCompilerOptions().grammar_bytes;
  command
      .add_option(
          "--max-grammar-memory-bytes", options->engine.grammar_memory_bytes,
          "Of all grammars of structured output: those that are kept, those of requests in flight, "
          "and what their answers take; a quarter for one key or address; with a GPU 4 GiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(size_t{1}, size_t{1} << 50))
      ->capture_default_str()
      ->group(kLimitGroup);
}

void AddTimeFlags(CLI::App& command, ServeOptions* options) {
  const auto add_seconds = [&command](const char* name, double& seconds, const char* what) {
    command.add_option(name, seconds, what)
        ->check(Between(0.001, 86400))
        ->capture_default_str()
        ->group(kLimitGroup);
  };
  add_seconds("--header-timeout", options->header_timeout_s,
              "Seconds that the head of a request may take to arrive; then 408");
  add_seconds("--body-timeout", options->body_timeout_s,
              "Seconds that a body may take to arrive; then 408");
  add_seconds("--idle-timeout", options->idle_timeout_s,
              "Seconds after which a connection without a request is closed");
  add_seconds("--send-timeout", options->send_timeout_s,
              "Seconds after which a client that does not read is dropped");
  add_seconds(
      "--work-timeout", options->work_timeout_s,
      "Seconds that a request may take to be read and tokenised, or its answer to be written");
  options->engine.queue_timeout_s = 600;
  const auto add_limit = [&command](const char* name, double& seconds, const char* what) {
    command.add_option(name, seconds, what)
        ->check(Between(0, 1e6))
        ->capture_default_str()
        ->group(kLimitGroup);
  };
  add_limit("--queue-timeout", options->engine.queue_timeout_s,
            "Seconds that a request may wait for a place among those that run; then 503. 0: any");
  add_limit(
      "--sse-keep-alive-interval", options->sse_keep_alive_s,
      "Seconds of silence after which a stream is sent a comment, so that nobody between takes "
      "it for dead. 0: none");
  add_limit("--request-timeout", options->request_timeout_s,
            "Seconds that a request may take, its answer included; then 504. 0: any");
  command
      .add_option("--drain-delay", options->drain_delay_s,
                  "Seconds after SIGTERM in which /health says 503 and requests are still served, "
                  "for whoever sends them here to notice")
      ->check(Between(0, 86400))
      ->capture_default_str()
      ->group(kLimitGroup);
  command
      .add_option("--shutdown-timeout", options->shutdown_timeout_s,
                  "Seconds that requests have left after SIGTERM")
      ->check(Between(0, 86400))
      ->capture_default_str()
      ->group(kLimitGroup);
}

}  // namespace

void AddServerFlags(CLI::App& command, ServeOptions* options) {
  command
      .add_option_function<std::string>(
          "--log-format",
          [](const std::string& format) { CHECK(SetLogFormat(format), "an unchecked format"); },
          "text, or json: a JSON object a line")
      ->default_str("text")
      ->check(CLI::IsMember({"text", "json"}))
      ->group(kServerGroup);
  CLI::Option* host =
      command.add_option("--host", options->host, "0.0.0.0 for every network of this machine");
  host->capture_default_str()->group(kServerGroup);
  CLI::Option* port = command.add_option("--port", options->port, "0 for any free one");
  port->check(CLI::Range(0, 65535))->capture_default_str()->group(kServerGroup);
  command
      .add_option("--uds", options->uds, "A Unix socket to serve on, instead of --host and --port")
      ->type_name("FILE")
      ->check([](const std::string& file) { return file.empty() ? "the name is empty" : ""; })
      ->excludes(host)
      ->excludes(port)
      ->group(kServerGroup);
  command
      .add_flag("--webui,!--no-webui", options->server.webui,
                "A page to talk to the model on, at /; it is there unless --no-webui leaves it out")
      ->group(kServerGroup);
  AddTlsFlags(command, options->server.tls);
  AddAccessFlags(command, *options);
  AddChatFlags(command, options);
  AddSamplingFlags(command, options);
  AddLimitFlags(command, options);
  AddMemoryFlags(command, options);
  AddTimeFlags(command, options);
}

Status CheckEnvironment() {
  const char* key = std::getenv("FATHOM_API_KEY");
  if (key != nullptr && *key == '\0') return InvalidArgument("FATHOM_API_KEY: {}", kEmptyKey);
  return {};
}

}  // namespace fathom
