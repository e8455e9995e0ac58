// Experts drawn at random in the router's stead, for benchmarks: random weights route all tokens
// nearly alike, so that a step reads far fewer experts than a trained model's would.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"

namespace fathom {

// How often each routed expert is chosen, in any unit.
struct SyntheticRouting {
  std::vector<std::vector<double>> shares;  // [MoE layers, or 1: all are alike][routed experts]

  static SyntheticRouting Uniform(const ModelConfig& config);
  // Expert shares of 1, 1/2, 1/3, ... (Zipf's law), in a random order for each MoE layer.
  static SyntheticRouting Zipf(const ModelConfig& config);

  // kInvalidArgument unless shares are finite, none is negative, and enough of them are above 0.
  Status Check(const ModelConfig& config) const;

  // The experts of each place of a step, in MoE layer `layer` of the data-parallel group `group`:
  // I32 [tokens, topk + shared], routed ones drawn by their shares without replacement, then the
  // shared ones. They are the same for every step. Groups of experts (n_group) play no part.
  // REQUIRES: Check.
  std::vector<int32_t> Draw(const ModelConfig& config, int64_t tokens, int layer, int group) const;
};

}  // namespace fathom
