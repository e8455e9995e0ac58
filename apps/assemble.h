// From a folder and settings to a running engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backends.h"
#include "chat/chat_template.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

enum class ChatTemplateUse { kNone, kIfThere, kRequired };

// BackendSettings::ops may be empty: the device's.
struct EngineSettings : BackendSettings {
  std::string model;                 // a folder; with dummy weights config.json is all it needs
  std::string load_format = "auto";  // "dummy": random weights, to measure a model without its own
  std::string config_preset;         // dummy weights: PresetConfig, instead of the folder's config
  std::string dtype = "auto";        // dummy weights: "fp8" or "bf16"; "auto": as the config says
  int32_t num_layers = 0;            // dummy weights: only the first so many layers; 0: all
  bool needs_tokenizer = true;       // otherwise LoadedEngine has none
  ChatTemplateUse chat_template = ChatTemplateUse::kIfThere;
  std::string device = "cpu";  // or "cuda"
  int32_t max_model_len = 0;   // 0: the checkpoint's
  int32_t max_num_seqs = 0;    // 0, here and below: FillDefaults
  int32_t max_num_batched_tokens = 0;
  int32_t prefill_chunk = 0;
  int64_t kv_cache_bytes = 0;  // 0: see engine/memory_plan.h
  int32_t max_queue = 1024;

  // What suits the device, where it is 0. A GPU needs more rows to be busy: V2-Lite in BF16 reads
  // prompts 1.5 times as fast in steps of 8192 tokens as in those of 1024
  // (docs/design/bf16-gemm.md).
  void FillDefaults();
};

// Members are destroyed last to first: the engine before what it runs on.
struct LoadedEngine {
  std::unique_ptr<Tokenizer> tokenizer;  // null if none was needed
  std::optional<ChatTemplate> chat_template;
  Backend backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<Clock> clock;
  std::unique_ptr<Engine> engine;  // not yet started
  ModelConfig config;
  GenerationConfig generation;
  std::vector<TokenId> eos;  // generation_config.json's, or config.json's
  std::string model_name;    // the folder's, or the preset's
};

// Shows progress on stderr: a bar on a terminal, log lines otherwise.
Result<LoadedEngine> AssembleEngine(EngineSettings settings, Engine::OutputCallback on_output);

}  // namespace fathom
