// Experts that lie over ranks: the pairs (token, expert) that this rank computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "checkpoint/model_config.h"
#include "model/shard.h"
#include "model/weights.h"
#include "ops/op_runner.h"
#include "tensor/buffer.h"

namespace fathom {

// A layer's tokens, after its router.
struct RoutedTokens {
  TensorView x;        // act [tokens, hidden]
  TensorView ids;      // I32 [tokens, topk + shared]
  TensorView weights;  // F32 [tokens, topk + shared]
  TensorView live;     // I32 [1]
  TensorView out;      // act [tokens, hidden]: the experts' sum. Ranks of a tensor-parallel group
                       // have the same tokens; of each one rank has the sum, and the others 0
};

// The layers share one. Its tensors have room for every pair that may come, so that none is ever
// dropped; large steps are exchanged in pieces of Ops::exchange_tokens.
class PairExchange {
 public:
  // For steps of at most so many tokens. REQUIRES: shard.layout.expert_parallel().
  PairExchange(const ModelConfig& config, const Shard& shard, const Ops& ops, int64_t max_tokens,
               Device& device);

  // What it takes of a device's memory; 0 of a layout without expert parallelism.
  static size_t Bytes(const ModelConfig& config, const Shard& shard, const Ops& ops,
                      int64_t max_tokens);

  // Of a step with at most `step_tokens` tokens in any group, which all ranks say alike.
  void Run(OpRunner& run, const MoeWeights& w, const RoutedTokens& tokens, int64_t step_tokens);

 private:
  PairExchange(const ModelConfig& config, const Shard& shard, const Ops& ops);
  size_t LayOut(int64_t max_tokens, DType activation, Arena arena);
  // Of one rank, in a step that has so many of a group left.
  int64_t EachOf(int64_t tokens) const;
  int64_t MostPairs(int64_t each) const;

  Communicator* ranks_;  // null: only sizes are asked for
  int64_t world_;
  int64_t routed_, shared_, topk_, hidden_;
  int64_t most_local_;  // routed experts of a token that can be this rank's
  int64_t at_a_time_;   // tokens of a rank
  int32_t stride_, offset_;
  TensorView x_, y_, ids_, origin_, live_, ones_;
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace fathom
