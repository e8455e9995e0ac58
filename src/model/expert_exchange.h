// Experts that lie over ranks of several groups, whole or cut: what this rank computes of all
// groups' tokens. Where they are cut, its parts of a layer's experts count as one expert here, and
// each token's experts as one of each rank, with weight 1: so that all ranks get all tokens, and
// the sum of what they come to is made in the order of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "checkpoint/model_config.h"
#include "model/shard.h"
#include "ops/op_runner.h"
#include "tensor/buffer.h"

namespace fathom {

// Tokens and their experts: a group's, or those of all groups that a rank computes.
struct RoutedTokens {
  TensorView x;        // act [tokens, hidden]
  TensorView ids;      // I32 [tokens, experts]
  TensorView weights;  // F32 [tokens, experts]
  TensorView live;     // I32 [1]
  TensorView out;      // act [tokens, hidden]: the experts' sum. Ranks of a tensor-parallel group
                       // have the same tokens; of each one rank has the sum, and the others 0
};

// The layers share one. Its tensors have room for every pair that may come, so that none is ever
// dropped; large steps are exchanged in pieces of Ops::exchange_tokens.
class PairExchange {
 public:
  // For steps of at most so many tokens. REQUIRES: UsedBy().
  PairExchange(const ModelConfig& config, const Shard& shard, const Ops& ops, int64_t max_tokens,
               Device& device);

  static bool UsedBy(const ModelConfig& config, const ParallelLayout& layout) {
    return layout.exchanges_tokens() && config.n_routed_experts > 0;
  }
  // What it takes of a device's memory; 0 if it is not used.
  static size_t Bytes(const ModelConfig& config, const Shard& shard, const Ops& ops,
                      int64_t max_tokens);
  // Whose router's choice a rank needs room for: of cut experts all groups' tokens.
  static int64_t TokensRouted(const ModelConfig& config, const Shard& shard, const Ops& ops,
                              int64_t max_tokens);

  bool cut() const { return cut_; }
  // Where experts are cut, what Run takes in the place of the router's choice: to all ranks.
  RoutedTokens ToAllRanks(const TensorView& x, const TensorView& live, const TensorView& out) const;

  // Has this rank compute what is its own of tokens: each with one expert, and weight 1.
  using Compute = std::function<void(const RoutedTokens& pairs)>;
  // Of a step with at most `step_tokens` tokens in any group, which all ranks say alike.
  void Run(OpRunner& run, const RoutedTokens& tokens, int64_t step_tokens, const Compute& compute);

 private:
  PairExchange(const ModelConfig& config, const Shard& shard, const Ops& ops);
  size_t LayOut(int64_t max_tokens, DType activation, Arena arena);
  // Of one rank, in a step that has so many of a group left.
  int64_t EachOf(int64_t tokens) const;
  int64_t MostPairs(int64_t each) const;

  Communicator* ranks_;  // null: only sizes are asked for
  int64_t world_;
  bool cut_;
  int64_t routed_, shared_, topk_, hidden_;  // as dispatch and combine know experts
  int64_t most_local_;                       // routed experts of a token that can be this rank's
  int64_t at_a_time_;                        // tokens of a rank
  int32_t stride_, offset_;
  TensorView x_, y_, ids_, origin_, live_, ones_;
  TensorView all_ids_, all_weights_;  // of cut experts: [tokens, ranks]
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace fathom
