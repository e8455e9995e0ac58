// fathom serve: the OpenAI-compatible server.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/log_thread.h"
#include "chat/output_parser.h"
#include "command_line.h"
#include "commands.h"
#include "engine_flags.h"
#include "grammar/xgrammar_adapter.h"
#include "grammar_vocabulary.h"
#include "serve_defaults.h"
#include "serve_flags.h"
#include "serve_limits.h"
#include "server/http_server.h"
#include "server/refused_connections.h"
#include "service_notice.h"
#include "source_hashes.h"
#include "taken_flags.h"
#include "usage.h"

namespace fathom {
namespace {

Result<ServedEngine> ServedEngineFor(const ServeOptions& options, LoadedEngine& loaded,
                                     EngineOutputs& outputs) {
  ServedEngine served{.engine = *loaded.engine,
                      .outputs = outputs,
                      .tokenizer = *loaded.tokenizer,
                      .chat_template = loaded.chat_template,
                      .model_names = options.served_model_names,
                      .eos_tokens = loaded.eos,
                      .vocab_size = static_cast<int32_t>(loaded.config.vocab_size)};
  if (options.tool_call_parser == "deepseek_v3") served.tool_call_form = ToolCallForm::kFenced;
  if (options.tool_call_parser == "deepseek_v31") served.tool_call_form = ToolCallForm::kNameFirst;
  served.parse_reasoning = options.reasoning_parser != "none";
  if (served.model_names.empty()) served.model_names = {loaded.model_name};
  served.max_logprobs = options.max_logprobs;
  served.priorities = options.scheduling_policy == "priority";
  TRY(SetDefaults(options, loaded.generation, &served));
  if (!loaded.backend.ops->name.starts_with("cuda")) served.sources = CpuSources();
  // What does not fit the queue can never be served, however idle the server is.
  served.max_choices =
      std::min(served.max_choices,
               options.engine.layout.data * options.engine.max_num_seqs + options.engine.max_queue);
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
  server.sse_keep_alive_ms = static_cast<int>(options.sse_keep_alive_s * 1000);
  server.send_timeout_ms = static_cast<int>(options.send_timeout_s * 1000);
  server.request_timeout_ms = static_cast<int>(options.request_timeout_s * 1000);
  server.handle_signals = true;
  server.on_leaving = [] { NotifyService("STOPPING=1"); };
  return server;
}

bool AsksForKey(const ServerOptions& server) {
  return !server.api_key.empty() || !server.api_key_file.empty();
}

void PrintReady(const ServeOptions& options, const std::string& model, uint16_t port,
                double seconds) {
  const bool any = options.host == "0.0.0.0" || options.host == "::";
  const std::string host = any ? "127.0.0.1" : options.host;
  const char* scheme = options.server.tls.wanted() ? "https" : "http";
  std::string address = fmt::format("{}://localhost", scheme), curl = address;
  if (options.uds.empty()) {
    const bool ipv6 = host.find(':') != std::string::npos;
    address = curl =
        fmt::format("{}://{}{}{}:{}", scheme, ipv6 ? "[" : "", host, ipv6 ? "]" : "", port);
  } else {
    curl = fmt::format("--unix-socket {} {}", options.uds, address);
    address = options.uds;
  }
  if (options.server.tls.wanted()) {
    curl = fmt::format("--cacert '{}' {}", options.server.tls.certificate, curl);
  }
  if (!options.server.tls.client_ca.empty()) curl = "--cert CERT --key KEYFILE " + curl;
  const std::string key = AsksForKey(options.server) ? " -H 'Authorization: Bearer KEY'" : "";
  fmt::print(
      "fathom {} serves {} on {} (ready after {:.1f} s). Try:\n\n"
      "  curl {}/v1/chat/completions -H 'Content-Type: application/json'{} -d '{{\"model\": "
      "\"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"What is 2 + 2?\"}}]}}'\n\n",
      FATHOM_VERSION, model, address, seconds, curl, key, model);
  std::fflush(stdout);
}

// So that every connection has its file descriptor, and its client is not left hanging.
Status RaiseFileLimit(const ServerOptions& server) {
  constexpr rlim_t kOthers = 256;  // of the log, the model's files, a GPU
  const rlim_t wanted =
      server.max_connections + server.reserved_connections + RefusedConnections::kMost + kOthers;
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

// Metrics name keys, and say how much each is used.
void WarnOfNames(const ServerOptions& server) {
  const auto& open = server.open_routes;
  const bool is_open = !open || std::find(open->begin(), open->end(), "/metrics") != open->end();
  if (server.api_key_file.empty() || !is_open) return;
  LOG_WARNING(
      "/metrics needs no key, and names those of {}: --open-routes without /metrics asks for one",
      server.api_key_file);
}

void WarnOfNetwork(const ServeOptions& options, uint16_t port) {
  const ServerOptions& server = options.server;
  if (!AsksForKey(server) && server.tls.client_ca.empty()) {
    LOG_WARNING("anyone who reaches {} port {} can use this server: --api-key asks for a key",
                options.host, port);
  }
  if (!server.tls.wanted()) {
    LOG_WARNING(
        "what passes to and from {} port {} can be read on its way, keys too: --ssl-certfile and "
        "--ssl-keyfile encrypt it",
        options.host, port);
  }
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

// On hosts but the first: the server only says that it is there.
Status FollowFirstHost(LoadedEngine& loaded, HttpServer& server, Running& running) {
  const Hosts& hosts = *loaded.hosts;
  const int first = hosts.index() * hosts.ranks_each();
  server.Follow();
  const int last = first + hosts.ranks_each() - 1;
  LOG_INFO(
      "host {} of {} is at work: {}", hosts.index(), hosts.count(),
      first == last ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, last));
  NotifyService("READY=1");
  // Either may come first: the engine's end, or a signal.
  std::thread until_signal([&] {
    running.Join();
    loaded.watch->Stop();
  });
  const Status ended = loaded.watch->Wait();
  server.Stop();
  until_signal.join();
  return ended;
}

Status Serve(ServeOptions options) {
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads the log may leave
  // What asks for a second reading must not end a server that is still loading, or has no files to
  // read: `systemctl reload` asks any. Without a service manager the terminal's end is meant.
  if (HasFilesToReread(options.server) || HasServiceManager()) std::signal(SIGHUP, SIG_IGN);
  // A container that is too small is to be killed now, not under load.
  options.engine.commit_memory = true;
  options.engine.request_memory_bytes = options.server.max_request_memory_bytes;
  const auto began = std::chrono::steady_clock::now();
  TRY(CheckEnvironment());
  TRY(CheckDefaults(options));
  TRY(RaiseFileLimit(options.server));
  // The port first: a model takes a while to load.
  BoundSocket port = TRY(options.uds.empty() ? BoundSocket::Port(options.host, options.port)
                                             : BoundSocket::File(options.uds));
  const uint16_t port_number = port.port();
  const bool local = port.loopback() || !options.uds.empty();
  NotifyService("STATUS=loading the model");
  EngineOutputs outputs;
  std::optional<LoadedEngine> loaded;  // outlives the server
  const std::unique_ptr<HttpServer> server =
      TRY(HttpServer::Listen(ServerOptionsFor(options), std::move(port)));
  const LogThread log_thread;  // nobody's request waits for who reads the log
  Running running(*server);
  loaded.emplace(TRY(LoadEngine(options.engine, [&outputs](std::vector<RequestOutput> news) {
    outputs.Deliver(std::move(news));
  })));
  if (loaded->follower) return FollowFirstHost(*loaded, *server, running);
  loaded->engine->OnFailure([&server] { server->Stop(); });
  loaded->engine->Start();
  ServedEngine served = TRY(ServedEngineFor(options, *loaded, outputs));
  // Ends before the server does, whose requests it answers.
  GrammarVocabulary vocabulary = VocabularyOf(*loaded);
  const size_t compile_bytes = GrammarCompileBytes(vocabulary.tokens.size());
  GrammarCompiler grammars(
      MakeXgrammarCompile(std::move(vocabulary)),
      {.compile_bytes = compile_bytes, .grammar_bytes = options.engine.grammar_memory_bytes});
  served.grammars = &grammars;
  const std::string model = served.model_names.front();
  server->Serve(std::move(served));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  PrintReady(options, model, port_number, took.count());
  if (!local) WarnOfNetwork(options, port_number);
  WarnOfNames(options.server);
  NotifyService("READY=1");
  running.Join();
  loaded->engine->OnFailure(nullptr);
  return loaded->engine->status();
}

}  // namespace

void AddServe(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("serve", "Serve a model over HTTP, as the OpenAI API does.");
  auto options = std::make_shared<ServeOptions>();
  AddServerFlags(*command, options.get());
  AddEngineFlags(*command, &options->engine);
  AddHostFlags(*command, &options->engine.hosts);
  AddLogLevel(*command, "info");
  TakeWhatRunsAnyway(*command);
  command->get_option("model")->envname(VariableOf("model"));
  command->footer(
      "Every flag can be said as FATHOM_..., as FATHOM_MAX_MODEL_LEN, or in the YAML of --config "
      "FILE;\nthe command line counts before the file, the file before the environment.");
  OnRun(*command, exit_code, [command, options] {
    options->engine.FillDefaults();
    SettleLimits(*command, options.get());
    return Serve(*options);
  });
}

}  // namespace fathom
