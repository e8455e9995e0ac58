// What the server is told at start-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace fathom {

// Of TLS, in PEM.
struct TlsFiles {
  std::string certificate;  // the server's, then those that signed it; "": no TLS
  std::string key;          // its private key
  std::string client_ca;    // who signs clients' certificates; "": none is asked for

  bool wanted() const { return !certificate.empty(); }
};

struct ServerOptions {
  std::string api_key;                                  // "": none, but those of the file
  std::vector<std::string> other_api_keys;              // as good as it
  std::string api_key_file;                             // "": none; see api_keys.h
  std::optional<std::vector<std::string>> open_routes;  // that need no key; see routes.h
  std::vector<std::string> allowed_origins;             // of web pages; see cors.h
  std::vector<std::string> allowed_hosts;               // further names of this server; see cors.h
  bool webui = true;                                    // "/" is a page to talk on
  TlsFiles tls;
  bool loopback = false;  // only this machine reaches it; of the port
  std::string version;

  size_t max_connections = 1024;
  size_t max_connections_per_client = 512;  // of an address
  size_t reserved_connections = 32;         // beside them, for /health and the like alone
  int64_t max_requests_per_client = 512;    // in flight; of a key without its own, or an address
  int64_t max_requests = std::numeric_limits<int64_t>::max();  // that run or wait, of all clients
  int refusal_gap_ms = 5;        // between two answers of 429 to one client
  int refusal_delay_ms = 1'000;  // the most that such an answer waits for it
  size_t max_header_bytes = size_t{32} << 10;
  size_t max_body_bytes = size_t{32} << 20;
  size_t max_request_memory_bytes = size_t{1} << 30;  // of all requests: base/memory_budget.h
  size_t max_client_memory_bytes = 0;  // of a key's or an address's; 0: MaxClientMemory()
  size_t max_stored_responses = 1024;  // of /v1/responses, to go on with
  size_t max_stored_response_bytes = size_t{64} << 20;  // of these
  size_t max_unsent_bytes = size_t{64} << 10;           // of a stream whose client does not read
  int header_timeout_ms = 10'000;                       // from the first byte to the last
  int body_timeout_ms = 60'000;
  int work_timeout_ms = 10'000;      // to read a request, and as long to write its answer
  int request_timeout_ms = 0;        // from its first byte to its last token; 0: without end
  int idle_timeout_ms = 75'000;      // of a kept-alive connection between requests
  int send_timeout_ms = 30'000;      // one write, or the gap between a client's reads
  int sse_keep_alive_ms = 0;         // a comment in a stream that is silent for so long; 0: none
  int drain_delay_ms = 0;            // after SIGTERM, not ready but serving
  int shutdown_timeout_ms = 30'000;  // for requests in flight to end by themselves
  int io_threads = 2;
  // SIGTERM and SIGINT drain; the second one ends requests. SIGHUP reads files again.
  bool handle_signals = false;
  std::function<void()> on_leaving;  // once, when a stop has begun; THREAD: one of the server's
};

// Whether SIGHUP has something to do.
inline bool HasFilesToReread(const ServerOptions& options) {
  return !options.api_key_file.empty() || options.tls.wanted();
}

}  // namespace fathom
