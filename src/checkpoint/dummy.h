// Random weights for any configuration, so that full-size models can be measured without theirs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"
#include "tensor/buffer.h"

namespace fathom {

// Every tensor of the schema is a view into one pool of its kind, at an offset that its name and
// the seed decide; so a model of any size takes the memory of its largest tensors, until it is
// packed. Matrices are normal with standard deviation 0.02 (FP8: the same after scaling), norms
// near 1.
class DummyWeights {
 public:
  // With config.fp8 every linear layer is FP8, otherwise BF16.
  DummyWeights(const ModelConfig& config, uint64_t seed);

  // Sorted by name; `offset` counts from the pool's beginning, `file` is the pool.
  std::vector<StoredTensor> TakeTensors() { return std::move(tensors_); }
  std::span<const std::byte> BytesOf(const StoredTensor& tensor) const {
    return {pools_[static_cast<size_t>(tensor.file)].data() + tensor.offset, tensor.bytes};
  }

 private:
  enum Pool : int32_t { kMatrices, kNorms, kCodes, kScales, kBiases, kPools };
  void Add(std::string name, Pool pool, std::vector<int64_t> shape);
  void Fill(Pool pool, uint64_t seed);

  std::vector<StoredTensor> tensors_;
  Buffer pools_[kPools];
};

}  // namespace fathom
