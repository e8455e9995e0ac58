// From a folder and flags to an engine, with what speaks text: tokenizer and chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends.h"
#include "chat/chat_template.h"
#include "checkpoint/checkpoint.h"
#include "engine/assembly.h"
#include "engine/engine.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

enum class ChatTemplateUse { kNone, kIfThere, kRequired };

struct EngineSettings : BackendSettings, EngineLimits {
  std::string model;                 // a folder; with dummy weights config.json is all it needs
  std::string load_format = "auto";  // "dummy": random weights, to measure a model without its own
  std::string config_preset;         // dummy weights: PresetConfig, instead of the folder's config
  std::string dtype = "auto";        // dummy weights: "fp8" or "bf16"; "auto": as the config says
  std::string synthetic_routing;     // "uniform", "zipf", a file's name, or empty: the router's
  double synthetic_acceptance = -1;  // the share of drafts that stand by chance; negative: none
  double step_timeout_s = AssemblyOptions().step_timeout_s;  // that a GPU may take
  HostsOptions hosts;                                        // that share the ranks
  int32_t num_layers = 0;          // dummy weights: only the first so many layers; 0: all
  std::string speculative_config;  // ParseSpeculation
  bool no_speculation = false;
  bool needs_tokenizer = true;  // otherwise LoadedEngine has none
  ChatTemplateUse chat_template = ChatTemplateUse::kIfThere;
  std::string chat_template_file;  // instead of the checkpoint's own; "": none

  // What suits the device, where it is 0.
  void FillDefaults() { EngineLimits::FillDefaults(device == "cuda"); }
};

// Members are destroyed last to first: the engine before what it runs on.
struct LoadedEngine {
  std::unique_ptr<Tokenizer> tokenizer;  // null if none was needed
  std::optional<ChatTemplate> chat_template;
  std::unique_ptr<Hosts> hosts;  // null if this one has all ranks
  Backend backend;
  std::vector<std::unique_ptr<Model>> models;  // of each rank
  std::unique_ptr<Clock> clock;
  std::unique_ptr<HostWatch> watch;
  std::unique_ptr<Engine> engine;  // not yet started; null on hosts but the first
  std::unique_ptr<WatchedEngine> watched;
  std::unique_ptr<StepFollower> follower;
  RecordedSteps recorded;  // by the first rank
  ModelConfig config;
  GenerationConfig generation;
  std::vector<TokenId> eos;  // generation_config.json's, or config.json's
  std::string model_name;    // the folder's, or the preset's
};

// The configuration that the settings name, whose weights need not be there.
Result<ModelConfig> DummyConfig(const EngineSettings& s);

// Shows progress on stderr: a bar on a terminal, log lines otherwise.
Result<LoadedEngine> LoadEngine(EngineSettings settings, Engine::OutputCallback on_output);

}  // namespace fathom
