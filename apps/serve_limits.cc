#include "serve_limits.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "serve_flags.h"
#include "server/json_body.h"

namespace fathom {
namespace {

// Of the largest body, where no flag says it: some pages of text.
constexpr size_t kLeastBody = size_t{64} << 10;

bool IsTold(const CLI::App& command, const char* flag) {
  return command.count(flag) > 0;
}

// `bound`: the flags that allow `most`; `instead`: what they would have to say.
template <class T>
void RefuseAbove(const CLI::App& command, const char* flag, T value, T most,
                 const std::string& bound, const std::string& instead) {
  if (value <= most || !IsTold(command, flag)) return;
  throw CLI::ValidationError(flag, fmt::format("{} is more than {} allows: say {} at most, or {}",
                                               value, bound, most, instead));
}

void SettleConnections(const CLI::App& command, ServerOptions& server) {
  constexpr char kFlag[] = "--max-connections-per-client";
  size_t& each = server.max_connections_per_client;
  const size_t all = server.max_connections;
  RefuseAbove(command, kFlag, each, all, fmt::format("--max-connections {}", all),
              fmt::format("--max-connections {}", each));
  each = std::min(each, all);
}

void CheckRequests(const CLI::App& command, ServeOptions& options) {
  const int64_t running = int64_t{options.engine.layout.data} * options.engine.max_num_seqs;
  const int64_t queued = options.engine.max_queue, each = options.server.max_requests_per_client;
  options.server.max_requests = running + queued;  // for keys' own, when their file is read
  RefuseAbove(
      command, "--max-requests-per-client", each, running + queued,
      fmt::format("--max-queue {} beside the {} that run (--max-num-seqs)", queued, running),
      fmt::format("--max-queue {}", each - running));
}

// The largest body whose request may take `bytes`; 0: none.
size_t BodyWithin(size_t bytes) {
  size_t fits = 0, most = bytes / 4;  // a request may take more than four bodies
  while (fits < most) {
    const size_t tried = most - (most - fits) / 2;
    if (MaxRequestMemory(tried) <= bytes) {
      fits = tried;
    } else {
      most = tried - 1;
    }
  }
  return fits;
}

// That what was told has room for bodies that were told is for HttpServer::Listen to see.
void SettleMemory(const CLI::App& command, ServerOptions& server) {
  const size_t all = server.max_request_memory_bytes, each = server.max_client_memory_bytes;
  RefuseAbove(command, "--max-client-memory-bytes", each, all,
              fmt::format("--max-request-memory-bytes {}", all),
              fmt::format("--max-request-memory-bytes {}", each));
  if (IsTold(command, "--max-body-bytes")) return;
  size_t fits = BodyWithin(all - all / 4);  // the last quarter is for small requests
  if (each > 0) fits = std::min(fits, BodyWithin(each));
  server.max_body_bytes = std::min(server.max_body_bytes, fits);
  if (fits >= kLeastBody) return;
  const bool of_client = each > 0 && BodyWithin(each) < kLeastBody;
  throw CLI::ValidationError(
      of_client ? "--max-client-memory-bytes" : "--max-request-memory-bytes",
      fmt::format("{} has no room for a body of {} KiB: say {} at least, or --max-body-bytes for "
                  "smaller ones",
                  of_client ? each : all, kLeastBody >> 10,
                  of_client ? MaxRequestMemory(kLeastBody) : LeastRequestMemory(kLeastBody)));
}

// What a request may wait for ends with its whole time.
void CheckTimes(const CLI::App& command, const ServeOptions& options) {
  if (options.request_timeout_s == 0) return;
  const auto check = [&](const char* flag, double seconds) {
    RefuseAbove(command, flag, seconds, options.request_timeout_s,
                fmt::format("--request-timeout {}", options.request_timeout_s),
                fmt::format("--request-timeout {}", seconds));
  };
  check("--header-timeout", options.header_timeout_s);
  check("--body-timeout", options.body_timeout_s);
  check("--work-timeout", options.work_timeout_s);
  check("--queue-timeout", options.engine.queue_timeout_s);
}

// Behind a GPU there are more answers at a time, and memory for them.
void SettleGrammars(const CLI::App& command, EngineSettings& engine) {
  if (IsTold(command, "--max-grammar-memory-bytes")) return;
  if (engine.device == "cuda" || engine.ops.starts_with("cuda")) {
    engine.grammar_memory_bytes = size_t{4} << 30;
  }
}

}  // namespace

void SettleLimits(const CLI::App& command, ServeOptions* options) {
  SettleConnections(command, options->server);
  CheckRequests(command, *options);
  SettleMemory(command, options->server);
  SettleGrammars(command, options->engine);
  CheckTimes(command, *options);
}

}  // namespace fathom
