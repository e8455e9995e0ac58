// What the server is told at start-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

namespace fathom {

// Sampling values of a request that does not name its own: the model's generation_config.json.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
};

struct ServerOptions {
  std::string api_key;                          // "": none needed
  std::vector<std::string> allowed_origins;     // of web pages; see cors.h
  std::vector<std::string> allowed_hosts;       // further names of this server; see cors.h
  bool loopback = false;                        // only this machine reaches it; of the port
  std::vector<std::string> served_model_names;  // the first one is reported
  std::string version;
  std::string sources;  // of this build, for benchmarks; "": not said
  SamplingDefaults defaults;
  std::vector<TokenId> eos_tokens;
  int32_t vocab_size = 0;     // token ids that requests may name: below this
  int32_t max_choices = 256;  // prompts x n of one HTTP request

  size_t max_connections = 1024;
  size_t max_connections_per_client = 512;  // of an address
  size_t reserved_connections = 32;         // beside them, for /health and the like alone
  size_t max_header_bytes = size_t{32} << 10;
  size_t max_body_bytes = size_t{32} << 20;
  size_t max_request_memory_bytes = size_t{1} << 30;  // of all requests: base/memory_budget.h
  size_t max_unsent_bytes = size_t{64} << 10;         // of a stream whose client does not read
  int header_timeout_ms = 10'000;                     // from the first byte to the last
  int body_timeout_ms = 60'000;
  int work_timeout_ms = 10'000;      // to parse, render and tokenise a request
  int idle_timeout_ms = 75'000;      // of a kept-alive connection between requests
  int send_timeout_ms = 30'000;      // one write, or the gap between a client's reads
  int shutdown_timeout_ms = 30'000;  // for requests in flight to end by themselves
  int io_threads = 2;
  bool handle_signals = false;  // SIGTERM and SIGINT drain; the second one ends requests
};

}  // namespace fathom
