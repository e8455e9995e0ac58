#include "taken_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <utility>

namespace fathom {
namespace {

constexpr const char* kFlags[] = {"--trust-remote-code",
                                  "--enable-auto-tool-choice",
                                  "--enable-chunked-prefill",
                                  "--async-scheduling",
                                  "--disable-log-requests",
                                  "--no-enable-log-requests",
                                  "--enforce-eager",
                                  "--no-enforce-eager",
                                  "--disable-log-stats",
                                  "--enable-request-id-headers",
                                  "--exclude-tools-when-tool-choice-none",
                                  "--disable-custom-all-reduce",
                                  "--enable-server-load-tracking"};

using Values = std::set<std::string>;

// No values: any will do.
const std::pair<const char*, Values> kOptions[] = {
    {"--gpu-memory-utilization", {"0.9", "0.90"}},
    {"--block-size", {"64"}},
    {"--seed", {"0"}},
    {"--swap-space", {"0"}},
    {"--cpu-offload-gb", {"0"}},
    {"--tokenizer-mode", {"auto"}},
    {"--scheduling-policy", {"fcfs"}},
    {"--distributed-executor-backend", {"mp"}},
    {"--chat-template-content-format", {"auto", "string"}},
    {"--response-role", {"assistant"}},
    {"--stream-interval", {"1"}},
    {"--nnodes", {"1"}},
    {"--node-rank", {"0"}},
    {"--api-server-count", {"1"}},
    {"--logprobs-mode", {"raw_logprobs"}},
    {"--optimization-level", {"0", "1", "2", "3"}},
    {"--max-cudagraph-capture-size", {}},
    {"--uvicorn-log-level", {}},
};

}  // namespace

void TakeWhatRunsAnyway(CLI::App& command) {
  static bool ignored = false;
  for (const char* flag : kFlags) {
    if (command.get_option_no_throw(flag) != nullptr) continue;
    command.add_flag(flag, ignored)->group("");
  }
  for (const auto& [flag, values] : kOptions) {
    if (command.get_option_no_throw(flag) != nullptr) continue;
    command
        .add_option_function<std::string>(
            flag,
            [flag = flag, &values = values](const std::string& value) {
              if (values.empty() || values.count(value) > 0) return;
              throw CLI::ValidationError(
                  flag, fmt::format("{} is not {}", value, fmt::join(values, " or ")));
            })
        ->group("");
  }
}

}  // namespace fathom
