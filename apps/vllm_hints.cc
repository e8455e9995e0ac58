// Flags of `vllm serve` that mean nothing here or something else, in the order of its help.
#include <algorithm>
#include <array>
#include <utility>

#include "usage.h"

namespace fathom {
namespace {

constexpr std::string_view kOneProcess =
    "a host has one process, with a thread for each rank: leave it out";
constexpr std::string_view kOtherCommands =
    "it is for ranks of several hosts, which serve, generate, verify and bench offline have: leave "
    "it out";
constexpr std::string_view kAlwaysOn = "it is always on: leave it out";
constexpr std::string_view kNoAdapters = "adapters are not supported";

constexpr auto kHints = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"--model", "name the model without a flag: fathom serve MODEL"},
    {"--tokenizer", "the tokenizer is the one in the model's folder"},
    {"--tokenizer-mode", "the tokenizer is the one in the model's folder: leave it out"},
    {"--revision", "name the folder of that snapshot as MODEL"},
    {"--download-dir", "nothing is downloaded: HF_HOME says where the hub's cache is"},
    {"--hf-token", "nothing is downloaded: leave it out"},
    {"--hf-overrides", "edit the config.json of a copy of the folder"},
    {"--load-format", "auto reads safetensors, which is what there is"},
    {"--dtype",
     "weights keep the types that they have in the checkpoint: leave it out (it is for random "
     "weights, with --load-format dummy)"},
    {"-q",
     "serve, generate and bench make int8 or int4 weights of any checkpoint; FP8 ones are read as "
     "such"},
    {"--quantization",
     "int8 and int4 make such weights of any checkpoint; FP8 ones are read as such: leave it out"},
    {"--kv-cache-dtype", "fp8 is E4M3, with scales of its own: say that, or bf16"},
    {"--generation-config", "auto takes the file in the model's folder"},
    {"--compilation-config", "nothing is compiled when it runs: leave it out"},
    {"--cuda-graph-sizes", "steps of all sizes up to --max-num-seqs are recorded: leave it out"},
    {"--attention-backend", "the GPU and the model choose the kernels: leave it out"},
    {"--seed", "send \"seed\" in a request"},
    {"--enable-reasoning", kAlwaysOn},
    {"--chat-template-content-format", "content is always made a string: leave it out"},
    {"--response-role", "answers have the role assistant: leave it out"},
    {"--gpu-memory-utilization",
     "a GPU is filled to nine tenths; --kv-cache-memory-bytes says how much memory the KV cache "
     "has"},
    {"--num-gpu-blocks-override", "--kv-cache-memory-bytes says how much memory the KV cache has"},
    {"--swap-space", "--kv-cache-memory-bytes says how much memory the KV cache has"},
    {"--cpu-offload-gb", "weights are in the memory of the device that computes: leave it out"},
    {"--block-size", "a page has 64 tokens: leave it out"},
    {"--no-enable-chunked-prefill", "prefill is always chunked; see --prefill-chunk"},
    {"--max-num-partial-prefills", kAlwaysOn},
    {"--scheduling-policy",
     "clients take turns, each with its requests in the order they come: leave it out"},
    {"--distributed-executor-backend", kOneProcess},
    {"--data-parallel-size-local", kOneProcess},
    {"--data-parallel-address", kOneProcess},
    {"--data-parallel-rpc-port", kOneProcess},
    {"--data-parallel-backend", kOneProcess},
    {"--data-parallel-rank", kOneProcess},
    {"--headless", kOtherCommands},
    {"--api-server-count", kOneProcess},
    {"--nnodes", kOtherCommands},
    {"--node-rank", kOtherCommands},
    {"--master-addr", kOtherCommands},
    {"--enable-eplb", kOneProcess},
    {"--eplb-config", kOneProcess},
    {"--all2all-backend", kOneProcess},
    {"--enable-dbo", kOneProcess},
    {"--moe-backend", "the GPU and the model choose the kernels: leave it out"},
    {"--spec-method", "say --speculative-config"},
    {"--spec-tokens", "say --speculative-config"},
    {"--logprobs-mode", "log-probabilities are the model's own (raw_logprobs): leave it out"},
    {"--max-logprobs", "at most 20 are reported: say up to 20"},
    {"--stream-interval", "every token is sent when it comes: leave it out"},
    {"--max-num-queued-reqs", "say --max-queue"},
    {"--enable-prompt-tokens-details", kAlwaysOn},
    {"--enable-force-include-usage", "send stream_options: {\"include_usage\": true}"},
    {"--sse-keep-alive-interval", "streams are silent while they wait: leave it out"},
    {"--structured-outputs-config", "forms are held to by xgrammar, as it comes: leave it out"},
    {"--enable-sleep-mode", "there is no sleep mode: leave it out"},
    {"--kv-transfer-config", "the KV cache stays on its device: leave it out"},
    {"--kv-offloading-size", "the KV cache stays on its device: leave it out"},
    {"--otlp-traces-endpoint", "there are no traces; /metrics is for Prometheus: leave it out"},
    {"--profiler-config", "fathom bench measures: leave it out"},
    {"--model-loader-extra-config",
     "weights are read as fast as the disk gives them: leave it out"},
    {"-O", "nothing is compiled when it runs: leave it out"},
    {"--enable-lora", kNoAdapters},
    {"--lora-modules", kNoAdapters},
    {"--limit-mm-per-prompt", "these models read text only: leave it out"},
    {"--guided-decoding-backend", "forms are held to by xgrammar, as it comes: leave it out"},
    {"--uvicorn-log-level", "say --log-level"},
    {"--allowed-methods", "pages of --allowed-origins may use all: leave it out"},
    {"--allowed-headers", "pages of --allowed-origins may send all: leave it out"},
    {"--allow-credentials", "no cookies are used: leave it out"},
    {"--enable-log-requests", "requests' text is never logged"},
    {"--disable-log-stats", "say --log-level warning"},
    {"--disable-uvicorn-access-log", "say --log-level warning"},
    {"--max-log-len", "requests' text is never logged: leave it out"},
    {"--ssl-cert-reqs", "--ssl-ca-certs asks every client for a certificate: leave it out"},
    {"--enable-ssl-refresh", "SIGHUP has certificates read again: leave it out"},
    {"--root-path", "a reverse proxy in front may take a prefix off: leave it out"},
});

}  // namespace

std::string_view VllmHint(std::string_view flag) {
  const auto* hint = std::find_if(kHints.begin(), kHints.end(),
                                  [&](const auto& entry) { return entry.first == flag; });
  return hint == kHints.end() ? std::string_view() : hint->second;
}

std::string_view VllmHintOfValue(std::string_view flag) {
  const std::string_view hint = VllmHint(flag);
  return hint == kOtherCommands ? std::string_view() : hint;
}

}  // namespace fathom
