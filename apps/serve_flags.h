// What `fathom serve` can be told.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "load_engine.h"
#include "request/params.h"
#include "server/options.h"

namespace fathom {

struct ServeOptions {
  EngineSettings engine;
  ServerOptions server;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string uds;  // a file instead of both
  std::string generation_config = "auto";
  std::string override_generation_config, default_template_kwargs;  // JSON objects; "": none
  int32_t max_logprobs = kMaxTopLogprobs;
  std::string scheduling_policy = "fcfs";
  std::string tool_call_parser = "auto", reasoning_parser = "auto";
  std::vector<std::string> served_model_names;
  double shutdown_timeout_s = 30, drain_delay_s = 0;
  double sse_keep_alive_s = 0;
  double send_timeout_s = 30, work_timeout_s = 10, request_timeout_s = 3600;
  double header_timeout_s = 10, body_timeout_s = 60, idle_timeout_s = 75;
};

void AddServerFlags(CLI::App& command, ServeOptions* options);
// What flags take from the environment, and would not see there.
Status CheckEnvironment();

}  // namespace fathom
