#include "checkpoint/dummy.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "checkpoint/schema.h"
#include "quant/e4m3.h"
#include "quant/weight_format.h"

namespace fathom {
namespace {

constexpr float kDeviation = 0.02f;
constexpr float kCodeDeviation = 100.0f;  // of E4M3 numbers, so that they use its range
constexpr size_t kPeriod = 1 << 20;       // a pool's numbers repeat after so many
constexpr size_t kAlignment = 64;

DType TypeOf(int32_t pool) {
  constexpr DType kTypes[] = {DType::kBF16, DType::kBF16, DType::kF8E4M3, DType::kF32, DType::kF32};
  return kTypes[pool];
}

uint64_t Hash(std::string_view name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

DummyWeights::DummyWeights(const ModelConfig& config, uint64_t seed) {
  for (const SchemaEntry& entry : ExpectedTensors(config)) {
    const TensorRule& rule = *entry.rule;
    if (rule.optional != nullptr && rule.optional(config)) continue;
    const std::vector<int64_t> shape = Shape(rule, config);
    if (rule.kind == TensorRule::kVector) {
      Add(entry.name, entry.name.ends_with("bias") ? kBiases : kNorms, shape);
    } else if (config.fp8 && rule.PublishedInFp8()) {
      Add(entry.name, kCodes, shape);
      const ScaleGroups& tiles = WeightFormat::kFp8.scales;
      Add(entry.name + "_scale_inv", kScales,
          {tiles.outputs.Count(shape[0]), tiles.channels.Count(shape[1])});
    } else {
      Add(entry.name, kMatrices, shape);
    }
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });

  uint64_t sizes[kPools] = {};
  for (const StoredTensor& tensor : tensors_) {
    sizes[tensor.file] = std::max(sizes[tensor.file], tensor.bytes);
  }
  for (int32_t pool = 0; pool < kPools; ++pool) {
    if (sizes[pool] == 0) continue;
    pools_[pool] = Buffer(sizes[pool]);
    Fill(static_cast<Pool>(pool), seed);
  }
  for (StoredTensor& tensor : tensors_) {
    const uint64_t places = (sizes[tensor.file] - tensor.bytes) / kAlignment + 1;
    tensor.offset = (Hash(tensor.name) ^ seed) % places * kAlignment;
  }
}

void DummyWeights::Add(std::string name, Pool pool, std::vector<int64_t> shape) {
  StoredTensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = TypeOf(pool);
  tensor.dtype_name = Name(*tensor.dtype);
  tensor.bytes = ByteSize(*tensor.dtype);
  for (const int64_t n : shape) tensor.bytes *= static_cast<uint64_t>(n);
  tensor.shape = std::move(shape);
  tensor.file = pool;
  tensor.in_schema = true;
  tensors_.push_back(std::move(tensor));
}

void DummyWeights::Fill(Pool pool, uint64_t seed) {
  Rng rng(seed, static_cast<uint64_t>(pool));
  std::byte* data = pools_[pool].data();
  const size_t size = pools_[pool].size(), element = ByteSize(TypeOf(pool));
  const size_t period = std::min(size, kPeriod * element);
  for (size_t at = 0; at < period; at += element) {
    const float normal = rng.Normal();
    switch (pool) {
      case kMatrices:
      case kNorms: {
        const BF16 x = ToBF16(pool == kNorms ? 1 + 0.1f * normal : kDeviation * normal);
        std::memcpy(data + at, &x, element);
        break;
      }
      case kCodes: {
        const E4M3 code = ToE4M3(kCodeDeviation * normal);
        std::memcpy(data + at, &code, element);
        break;
      }
      case kScales:
      case kBiases: {
        const float x = pool == kScales ? kDeviation / kCodeDeviation * std::exp(0.1f * normal)
                                        : kDeviation * normal;
        std::memcpy(data + at, &x, element);
        break;
      }
      case kPools: CHECK(false);
    }
  }
  for (size_t at = period; at < size; at += period) {
    std::memcpy(data + at, data, std::min(period, size - at));
  }
}

}  // namespace fathom
