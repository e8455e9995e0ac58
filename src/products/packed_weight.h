// Weights as the products of one kind of hardware want them: opaque to everything above ops/.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "quant/weight_tensor.h"
#include "tensor/stream.h"

namespace fathom {

enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kFp8,   // E4M3 with scale tiles
  kInt8,  // made at load: integers with a scale per output and 128 channels
  kInt4,  // made at load: the same, with a multiplier per 32 channels
};

// `count` matrices [out, in] of one format, laid out by the backend that packed them. Only ops of
// the same table may be given it.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  WeightFormat format = WeightFormat::kBF16;
  bool quantize_activations = false;  // kFp8: to E4M3, per token and 128 channels
  bool scale_ue8m0 = false;           // their scales are powers of two
  int64_t count = 1;                  // experts or heads; 1 for a plain matrix
  int64_t out = 0, in = 0;
  size_t bytes = 0;
};

// How a matrix is put together: its parts follow each other along the output dimension (gate and
// up), each with its own scale tiles.
struct WeightSource {
  std::vector<WeightTensor> parts;
};

struct PackArgs {
  std::span<const WeightSource> matrices;  // [count], of equal shape
  // Never multiply with quantised activations (absorbed W_UK, W_UV).
  bool exact_activations = false;
  bool scale_ue8m0 = false;
};

// The contract; a violation is a bug and stops the process.
void Check(const PackArgs&);

}  // namespace fathom
