// fathom serve: the OpenAI-compatible server.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/log_thread.h"
#include "commands.h"
#include "cpu_sources.h"
#include "engine_flags.h"
#include "server/http_server.h"
#include "usage.h"

namespace fathom {
namespace {

struct ServeOptions {
  EngineSettings engine;
  ServerOptions server;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string generation_config = "auto";
  std::vector<std::string> served_model_names;
  double shutdown_timeout_s = 30, drain_delay_s = 0;
  double send_timeout_s = 30, work_timeout_s = 10;
  double header_timeout_s = 10, body_timeout_s = 60, idle_timeout_s = 75;
};

SamplingDefaults DefaultsOf(const GenerationConfig& config) {
  SamplingDefaults defaults{.temperature = config.temperature,
                            .top_p = config.top_p,
                            .min_p = config.min_p,
                            .repetition_penalty = config.repetition_penalty,
                            .top_k = config.top_k};
  if (!config.do_sample) defaults.temperature = 0.0f;
  return defaults;
}

ServedEngine ServedEngineFor(const ServeOptions& options, LoadedEngine& loaded,
                             EngineOutputs& outputs) {
  ServedEngine served{.engine = *loaded.engine,
                      .outputs = outputs,
                      .tokenizer = *loaded.tokenizer,
                      .chat_template = loaded.chat_template,
                      .model_names = options.served_model_names,
                      .eos_tokens = loaded.eos,
                      .vocab_size = static_cast<int32_t>(loaded.config.vocab_size)};
  if (served.model_names.empty()) served.model_names = {loaded.model_name};
  if (options.generation_config == "auto") served.defaults = DefaultsOf(loaded.generation);
  if (!loaded.backend.ops->name.starts_with("cuda")) served.sources = CpuSources();
  // What does not fit the queue can never be served, however idle the server is.
  served.max_choices =
      std::min(served.max_choices, options.engine.max_num_seqs + options.engine.max_queue);
  return served;
}

ServerOptions ServerOptionsFor(const ServeOptions& options) {
  ServerOptions server = options.server;
  server.version = FATHOM_VERSION;
  server.drain_delay_ms = static_cast<int>(options.drain_delay_s * 1000);
  server.shutdown_timeout_ms = static_cast<int>(options.shutdown_timeout_s * 1000);
  server.work_timeout_ms = static_cast<int>(options.work_timeout_s * 1000);
  server.header_timeout_ms = static_cast<int>(options.header_timeout_s * 1000);
  server.body_timeout_ms = static_cast<int>(options.body_timeout_s * 1000);
  server.idle_timeout_ms = static_cast<int>(options.idle_timeout_s * 1000);
  server.send_timeout_ms = static_cast<int>(options.send_timeout_s * 1000);
  server.handle_signals = true;
  return server;
}

bool AsksForKey(const ServerOptions& server) {
  return !server.api_key.empty() || !server.api_key_file.empty();
}

void PrintReady(const ServeOptions& options, const std::string& model, uint16_t port,
                double seconds) {
  const bool any = options.host == "0.0.0.0" || options.host == "::";
  const std::string host = any ? "127.0.0.1" : options.host;
  const std::string address = host.find(':') == std::string::npos
                                  ? fmt::format("http://{}:{}", host, port)
                                  : fmt::format("http://[{}]:{}", host, port);
  const std::string key = AsksForKey(options.server) ? " -H 'Authorization: Bearer KEY'" : "";
  fmt::print(
      "fathom {} serves {} on {} (ready after {:.1f} s). Try:\n\n"
      "  curl {}/v1/chat/completions -H 'Content-Type: application/json'{} -d '{{\"model\": "
      "\"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"What is 2 + 2?\"}}]}}'\n\n",
      FATHOM_VERSION, model, address, seconds, address, key, model);
  std::fflush(stdout);
}

// So that every connection has its file descriptor, and its client is not left hanging.
Status RaiseFileLimit(const ServerOptions& server) {
  constexpr rlim_t kOthers = 256;  // of the log, the model's files, a GPU
  const rlim_t wanted = server.max_connections + 2 * server.reserved_connections + kOthers;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return {};
  if (limit.rlim_max < wanted) {
    return InvalidArgument(
        "--max-connections {} needs {} file descriptors, and this process may have {}: raise "
        "ulimit -Hn (LimitNOFILE= in systemd), or allow fewer connections",
        server.max_connections, wanted, limit.rlim_max);
  }
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return {};
  return Internal("the limit of file descriptors cannot be raised to {}", wanted);
}

// A server at work on a thread of its own, so that it answers while the model is loading.
class Running {
 public:
  explicit Running(HttpServer& server) : server_(server), thread_([&server] { server.Run(); }) {}
  ~Running() {
    server_.Stop();
    Join();
  }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  HttpServer& server_;
  std::thread thread_;
};

constexpr char kEmptyKey[] =
    "the key is empty, perhaps a variable that is not set: leave it out to serve without a key";

Status Serve(ServeOptions options) {
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads the log may leave
  // What asks for a second reading must not end a server that is still loading.
  if (!options.server.api_key_file.empty()) std::signal(SIGHUP, SIG_IGN);
  options.engine.FillDefaults();
  const auto began = std::chrono::steady_clock::now();
  const char* key = std::getenv("FATHOM_API_KEY");
  if (key != nullptr && *key == '\0') return InvalidArgument("FATHOM_API_KEY: {}", kEmptyKey);
  TRY(RaiseFileLimit(options.server));
  // The port first: a model takes a while to load.
  BoundPort port = TRY(BoundPort::Bind(options.host, options.port));
  const uint16_t port_number = port.port();
  const bool loopback = port.loopback();
  EngineOutputs outputs;
  std::optional<LoadedEngine> loaded;  // outlives the server
  const std::unique_ptr<HttpServer> server =
      TRY(HttpServer::Listen(ServerOptionsFor(options), std::move(port)));
  Running running(*server);
  loaded.emplace(TRY(LoadEngine(options.engine, [&outputs](std::vector<RequestOutput> news) {
    outputs.Deliver(std::move(news));
  })));
  loaded->engine->OnFailure([&server] { server->Stop(); });
  loaded->engine->Start();
  ServedEngine served = ServedEngineFor(options, *loaded, outputs);
  const std::string model = served.model_names.front();
  server->Serve(std::move(served));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  PrintReady(options, model, port_number, took.count());
  if (!loopback && !AsksForKey(options.server)) {
    LOG_WARNING("anyone who reaches {} port {} can use this server: --api-key asks for a key",
                options.host, port_number);
  }
  const LogThread log_thread;  // nobody's request waits for who reads the log
  running.Join();
  loaded->engine->OnFailure(nullptr);
  return loaded->engine->status();
}

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

constexpr char kServerGroup[] = "Server";

// Under which names, and by whom.
void AddAccessFlags(CLI::App& command, ServeOptions& options) {
  ServerOptions& server = options.server;
  // CLI11 gives such a flag all words up to the next one, MODEL too.
  const auto all_but_model = [&command](std::vector<std::string> words) {
    CLI::Option* model = command.get_option("model");
    if (model->empty() && words.size() > 1) {
      model->add_result(words.back());
      words.pop_back();
    }
    return words;
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--served-model-name",
          [all_but_model, &options](const std::vector<std::string>& words) {
            options.served_model_names = all_but_model(words);
          },
          "Names that requests may use; the folder's if none is given. If MODEL stands nowhere "
          "else, the last of several is MODEL")
      ->check([](const std::string& name) { return name.empty() ? "a name is empty" : ""; })
      ->group(kServerGroup);
  command
      .add_option("--api-key", server.api_key,
                  "What clients must send as Authorization: Bearer KEY; FATHOM_API_KEY in the "
                  "environment keeps it out of the process list")
      ->envname("FATHOM_API_KEY")
      ->check([](const std::string& key) { return key.empty() ? kEmptyKey : ""; })
      ->group(kServerGroup);
  command
      .add_option("--api-key-file", server.api_key_file,
                  "Named keys and their limits, a line each: NAME KEY [requests-per-minute=N] "
                  "[tokens-per-minute=N] [in-flight=N]; read again on SIGHUP")
      ->type_name("FILE")
      ->check([](const std::string& file) { return file.empty() ? "the name is empty" : ""; })
      ->group(kServerGroup);
  command
      .add_option_function<std::vector<std::string>>(
          "--open-routes",
          [all_but_model, &server](const std::vector<std::string>& words) {
            server.open_routes = all_but_model(words);
            if (words.size() == 1 && words[0] == "none") server.open_routes->clear();
          },
          "Routes that need no key, or none; /health /ping /live /load /version /metrics unless "
          "given")
      ->type_name("PATH")
      ->group(kServerGroup);
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
      ->group(kServerGroup);
  command
      .add_option_function<std::vector<std::string>>(
          "--allowed-hosts",
          [all_but_model, &server](const std::vector<std::string>& words) {
            server.allowed_hosts = all_but_model(words);
          },
          "Further names that this server may be called by in Host, as models.example.com or '*'; "
          "on loopback those of this machine alone unless given")
      ->type_name("NAME")
      ->group(kServerGroup);
}

void AddLimitFlags(CLI::App& command, ServeOptions* options) {
  ServerOptions& server = options->server;
  command
      .add_option("--max-queue", options->engine.max_queue,
                  "Requests that wait for a place; more are answered 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kServerGroup);
  command
      .add_option("--max-connections", server.max_connections,
                  "Idle ones give way to more; where none is idle, more are answered 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kServerGroup);
  command
      .add_option("--max-connections-per-client", server.max_connections_per_client,
                  "Of one address; its idle ones give way to more, else they are answered 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kServerGroup);
  command
      .add_option("--max-requests-per-client", server.max_requests_per_client,
                  "Answers in flight or queued for one address, or for a key without a number of "
                  "its own; more are answered 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kServerGroup);
  command.add_option("--max-body-bytes", server.max_body_bytes, "Of one request")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str()
      ->group(kServerGroup);
  command
      .add_option("--max-request-memory-bytes", server.max_request_memory_bytes,
                  "Of all requests together: bodies, what is made of them, answers not yet sent")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str()
      ->group(kServerGroup);
  const auto add_seconds = [&command](const char* name, double& seconds, const char* what) {
    command.add_option(name, seconds, what)
        ->check(Between(0.001, 86400))
        ->capture_default_str()
        ->group(kServerGroup);
  };
  add_seconds("--header-timeout", options->header_timeout_s,
              "Seconds that the head of a request may take to arrive; then 408");
  add_seconds("--body-timeout", options->body_timeout_s,
              "Seconds that a body may take to arrive; then 408");
  add_seconds("--idle-timeout", options->idle_timeout_s,
              "Seconds after which a connection without a request is closed");
  add_seconds("--send-timeout", options->send_timeout_s,
              "Seconds after which a client that does not read is dropped");
  add_seconds("--work-timeout", options->work_timeout_s,
              "Seconds that a request's text may take to be read, rendered and tokenised");
  command
      .add_option("--drain-delay", options->drain_delay_s,
                  "Seconds after SIGTERM in which /health says 503 and requests are still served, "
                  "for whoever sends them here to notice")
      ->check(Between(0, 86400))
      ->capture_default_str()
      ->group(kServerGroup);
  command
      .add_option("--shutdown-timeout", options->shutdown_timeout_s,
                  "Seconds that requests have left after SIGTERM")
      ->check(Between(0, 86400))
      ->capture_default_str()
      ->group(kServerGroup);
}

void AddServerFlags(CLI::App& command, ServeOptions* options) {
  command.add_option("--host", options->host, "0.0.0.0 for every network of this machine")
      ->capture_default_str()
      ->group(kServerGroup);
  command.add_option("--port", options->port, "0 for any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(kServerGroup);
  AddAccessFlags(command, *options);
  command
      .add_option("--generation-config", options->generation_config,
                  "Sampling that requests leave open: auto takes the model's "
                  "generation_config.json, vllm takes temperature 1 and no limits")
      ->check(CLI::IsMember({"auto", "vllm"}))
      ->capture_default_str()
      ->group(kServerGroup);
  AddLimitFlags(command, options);
}

}  // namespace

void AddServe(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("serve", "Serve a model over HTTP, as the OpenAI API does.");
  auto options = std::make_shared<ServeOptions>();
  AddServerFlags(*command, options.get());
  AddEngineFlags(*command, &options->engine);
  AddLogLevel(*command, "info");
  OnRun(*command, exit_code, [options] { return Serve(*options); });
}

}  // namespace fathom
