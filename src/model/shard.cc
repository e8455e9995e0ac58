#include "model/shard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/printable.h"

namespace fathom {

ModelConfig ConfigOfRank(const ModelConfig& config, const Shard& shard) {
  ModelConfig part = config;
  part.num_heads = static_cast<int32_t>(shard.Heads(config.num_heads).size());
  return part;
}

namespace {

bool IsByHead(ShardAxis axis) {
  return axis == ShardAxis::kHeadOutputs || axis == ShardAxis::kHeadChannels;
}

// The dimension that is cut along `axis`.
int Dimension(ShardAxis axis) {
  return axis == ShardAxis::kChannels || axis == ShardAxis::kHeadChannels ? 1 : 0;
}

// Of the experts of a layer, routed or shared.
bool IsOfExperts(std::string_view name) {
  return name.find("experts.") != name.npos;
}

// The rank's share of a dimension of this size.
Share ShareAlong(ShardAxis axis, int64_t size, const ModelConfig& config, const Shard& shard) {
  if (axis == ShardAxis::kNone) return {0, size};
  if (!IsByHead(axis)) return shard.Of(size);
  const Share heads = shard.Heads(config.num_heads);
  const int64_t each = size / config.num_heads;
  return {heads.begin * each, heads.end * each};
}

}  // namespace

WeightTensor PartOf(const WeightTensor& whole, ShardAxis axis, const ModelConfig& config,
                    const Shard& shard) {
  if (shard.layout.tensor == 1 || axis == ShardAxis::kNone) return whole;
  const int dimension = Dimension(axis);
  const Share share = ShareAlong(axis, whole.values.dim(dimension), config, shard);
  return (dimension == 1 ? SliceChannels : SliceOutputs)(whole, share.begin, share.end);
}

WeightTensor PartOfExpert(const WeightTensor& whole, ShardAxis axis, const Shard& shard) {
  const int dimension = Dimension(axis);
  const Share share = shard.OfExpert(whole.values.dim(dimension));
  if (share.size() == whole.values.dim(dimension)) return whole;
  return (dimension == 1 ? SliceChannels : SliceOutputs)(whole, share.begin, share.end);
}

namespace {

// The share of a tensor's bytes that is the rank's, but for borders that cut scale tiles.
double PartOfBytes(const SchemaEntry& entry, const ModelConfig& config, const Shard& shard) {
  if (shard.layout.expert_parallel() && IsOfExperts(entry.name)) {
    const Share experts = shard.Experts(config.n_routed_experts);
    const bool other =
        entry.expert >= 0 && (entry.expert < experts.begin || entry.expert >= experts.end);
    return other ? 0 : 1;
  }
  if (IsOfExperts(entry.name)) {
    const int64_t inter = config.moe_intermediate_size;  // shared experts are cut one by one
    return static_cast<double>(shard.OfExpert(inter).size()) / static_cast<double>(inter);
  }
  const ShardAxis axis = entry.rule->axis;
  const int64_t size = Shape(*entry.rule, config)[static_cast<size_t>(Dimension(axis))];
  return static_cast<double>(ShareAlong(axis, size, config, shard).size()) /
         static_cast<double>(size);
}

// A tensor's bytes on a device: norms, biases and, where activations are not BF16, routers become
// fp32 (ModelWeights).
double BytesOnDevice(const SchemaEntry& entry, const ModelConfig& config, const Ops& ops,
                     uint64_t stored) {
  const TensorRule& rule = *entry.rule;
  const std::vector<int64_t> shape = Shape(rule, config);
  const auto elements = static_cast<double>(shape[0] * (shape.size() > 1 ? shape[1] : 1));
  const bool router = rule.kind == TensorRule::kMatrix && rule.scope == TensorRule::kMoeLayer;
  if (rule.kind == TensorRule::kVector) return sizeof(float) * elements;
  if (router && ops.activation != DType::kBF16) return sizeof(float) * elements;
  if (!entry.name.ends_with("kv_b_proj.weight")) return static_cast<double>(stored);
  const bool absorbed_in_bf16 = ops.activation == DType::kBF16;
  return static_cast<double>(stored) +
         (absorbed_in_bf16 ? ByteSize(DType::kBF16) * elements : static_cast<double>(stored));
}

}  // namespace

bool HasEmbedding(const ModelConfig& config, const Shard& shard) {
  return shard.first_stage() || (shard.last_stage() && config.num_mtp_layers > 0);
}

namespace {

bool IsEmbedding(const SchemaEntry& entry) {
  return entry.name == "model.embed_tokens.weight";
}

bool InLayers(const SchemaEntry& entry, const ModelConfig& config) {
  return entry.layer >= 0 && entry.layer < config.num_layers;
}

// Of weights.
struct StageBytes {
  std::vector<double> before;  // of the layers before each, and of all
  double first = 0, last = 0;  // beside its layers, of the first stage and of the last one

  // Of a stage with layers [begin, end).
  double Of(bool is_first, bool is_last, size_t begin, size_t end) const {
    return before[end] - before[begin] + (is_first ? first : 0) + (is_last ? last : 0);
  }
};

// All, and those that are read for a token: of routed experts its own, of the embedding a vector.
struct ModelBytes {
  ModelBytes(const ModelConfig& config, const TensorSizes& stored) {
    const auto layers = static_cast<size_t>(config.num_layers);
    all.before.resize(layers + 1), read.before.resize(layers + 1);
    const double chosen =
        static_cast<double>(config.num_experts_per_tok) / std::max(1, config.n_routed_experts);
    for (const auto& [entry, bytes] : stored) {
      if (entry.rule->RepeatsMain()) continue;
      const auto size = static_cast<double>(bytes);
      const double size_read = entry.expert >= 0 ? size * chosen : size;
      if (InLayers(entry, config)) {
        all.before[static_cast<size_t>(entry.layer) + 1] += size;
        read.before[static_cast<size_t>(entry.layer) + 1] += size_read;
      } else if (IsEmbedding(entry)) {
        all.first += size;
        if (config.tie_word_embeddings || config.num_mtp_layers > 0) all.last += size;
        if (config.tie_word_embeddings) read.last += size_read;
      } else {
        all.last += size;
        read.last += size_read;
      }
    }
    for (StageBytes* bytes : {&all, &read}) {
      std::partial_sum(bytes->before.begin(), bytes->before.end(), bytes->before.begin());
    }
  }
  StageBytes all, read;
};

// Where stages begin, and the last one ends.
struct Borders {
  std::vector<size_t> at;
  double most = 0;  // that a stage costs
};

// Those whose dearest stage is cheapest. `cost`: of stage s with layers [begin, end).
template <class Cost>
Borders CheapestBorders(size_t layers, size_t stages, const Cost& cost) {
  const size_t width = layers + 1;
  // Of the first s stages, which end before a layer: the most that one costs, and where it begins.
  std::vector<double> most(width, std::numeric_limits<double>::infinity());
  std::vector<std::vector<size_t>> begins(stages, std::vector<size_t>(width));
  most[0] = 0;
  for (size_t s = 0; s < stages; ++s) {
    std::vector<double> next(width, std::numeric_limits<double>::infinity());
    for (size_t end = 1; end < width; ++end) {
      for (size_t from = 0; from < end; ++from) {
        if (most[from] >= next[end]) continue;
        const double here = std::max(most[from], cost(s, from, end));
        if (here >= next[end]) continue;
        next[end] = here;
        begins[s][end] = from;
      }
    }
    most = std::move(next);
  }
  Borders borders{.at = std::vector<size_t>(stages + 1), .most = most.back()};
  borders.at.back() = layers;
  for (size_t s = stages; s > 0; --s) borders.at[s - 1] = begins[s - 1][borders.at[s]];
  return borders;
}

// Such that the fullest stage has the least bytes; of these such that the stage that reads most for
// a token reads least: layers of experts hold far more than dense ones, and take about as long.
std::vector<size_t> StageBorders(const ModelConfig& config, const TensorSizes& stored,
                                 size_t stages) {
  const ModelBytes model(config, stored);
  const auto bytes = [&](const StageBytes& of, size_t s, size_t begin, size_t end) {
    return of.Of(s == 0, s == stages - 1, begin, end);
  };
  const size_t layers = model.all.before.size() - 1;
  const double most = CheapestBorders(layers, stages, [&](size_t s, size_t begin, size_t end) {
                        return bytes(model.all, s, begin, end);
                      }).most;
  return CheapestBorders(layers, stages,
                         [&](size_t s, size_t begin, size_t end) {
                           return bytes(model.all, s, begin, end) <= most
                                      ? bytes(model.read, s, begin, end)
                                      : std::numeric_limits<double>::infinity();
                         })
      .at;
}

}  // namespace

TensorSizes TensorSizesOf(const ModelConfig& config,
                          const std::function<uint64_t(const SchemaEntry&)>& bytes) {
  TensorSizes stored;
  for (SchemaEntry& entry : ExpectedTensors(config)) {
    if (const uint64_t its = bytes(entry); its > 0) stored.push_back({std::move(entry), its});
  }
  return stored;
}

TensorSizes PublishedSizes(const ModelConfig& config) {
  return TensorSizesOf(config,
                       [&](const SchemaEntry& entry) { return PublishedBytes(entry, config); });
}

Share LayersOf(const ModelConfig& config, const Shard& shard, const TensorSizes& stored) {
  const int stages = shard.layout.pipeline;
  if (stages == 1) return {0, config.num_layers};
  const auto borders = StageBorders(config, stored, static_cast<size_t>(stages));
  const auto stage = static_cast<size_t>(shard.stage);
  return {static_cast<int64_t>(borders[stage]), static_cast<int64_t>(borders[stage + 1])};
}

int64_t CachedLayers(const ModelConfig& config, const Shard& shard, const TensorSizes& stored) {
  return LayersOf(config, shard, stored).size() + (shard.last_stage() ? config.num_mtp_layers : 0);
}

namespace {

// Whether all ranks of a stage have all of a tensor.
bool IsReplicated(const SchemaEntry& entry, const ParallelLayout& layout) {
  if (layout.stage_ranks() == 1) return false;
  if (IsOfExperts(entry.name)) return layout.expert_parallel() && entry.expert < 0;
  return layout.tensor == 1 || entry.rule->axis == ShardAxis::kNone;
}

// Of the tensors that `counts`.
template <class Counts>
size_t BytesOf(const ModelConfig& config, const Ops& ops, const Shard& shard,
               const TensorSizes& stored, const Counts& counts) {
  const Share layers = LayersOf(config, shard, stored);
  const auto is_here = [&](const SchemaEntry& entry) {
    if (InLayers(entry, config)) return entry.layer >= layers.begin && entry.layer < layers.end;
    if (!IsEmbedding(entry)) return shard.last_stage();
    return HasEmbedding(config, shard) || (config.tie_word_embeddings && shard.last_stage());
  };
  double bytes = 0;
  for (const auto& [entry, whole] : stored) {
    if (entry.rule->RepeatsMain() || !is_here(entry) || !counts(entry)) continue;
    bytes += BytesOnDevice(entry, config, ops, whole) * PartOfBytes(entry, config, shard);
  }
  return static_cast<size_t>(bytes);
}

}  // namespace

size_t PartBytes(const ModelConfig& config, const Ops& ops, const Shard& shard,
                 const TensorSizes& stored) {
  return BytesOf(config, ops, shard, stored, [](const SchemaEntry&) { return true; });
}

size_t ReplicatedBytes(const ModelConfig& config, const Ops& ops, const Shard& shard,
                       const TensorSizes& stored) {
  return BytesOf(config, ops, shard, stored,
                 [&](const SchemaEntry& entry) { return IsReplicated(entry, shard.layout); });
}

namespace {

// Whether experts can be cut over so many ranks, or need not be.
bool CanCutExperts(const ModelConfig& config, const ParallelLayout& layout, int ranks) {
  return config.n_routed_experts == 0 || layout.experts ||
         ShareUnit(config.moe_intermediate_size, ranks) > 0;
}

Status CheckTensorParallel(const ModelConfig& config, const ParallelLayout& layout) {
  const auto possible = [&](int ranks) {
    return config.num_heads % ranks == 0 && ShareUnit(config.vocab_size, ranks) > 0 &&
           ShareUnit(config.intermediate_size, ranks) > 0 && CanCutExperts(config, layout, ranks);
  };
  if (layout.tensor >= 1 && possible(layout.tensor)) return {};
  std::vector<int> sizes;
  for (int ranks = 1; ranks <= config.num_heads; ++ranks) {
    if (possible(ranks)) sizes.push_back(ranks);
  }
  return InvalidArgument(
      "--tensor-parallel-size {}: the model's {} heads cannot be shared out evenly; {} would do",
      layout.tensor, config.num_heads, fmt::join(sizes, ", "));
}

// Each rank has a routed expert at least, or a part of each.
Status CheckDataParallel(const ModelConfig& config, const ParallelLayout& layout) {
  if (layout.experts && config.n_routed_experts == 0) {
    return InvalidArgument("--enable-expert-parallel: the model has no experts; leave it out");
  }
  if (!CanCutExperts(config, layout, layout.stage_ranks())) {
    return InvalidArgument(
        "--data-parallel-size {}: {} ranks cannot cut the model's experts of {} inner channels "
        "between them; at most {} would do, or --enable-expert-parallel",
        layout.data, layout.stage_ranks(), config.moe_intermediate_size,
        config.moe_intermediate_size / layout.tensor);
  }
  if (!layout.experts || layout.stage_ranks() <= config.n_routed_experts) return {};
  return InvalidArgument(
      "--data-parallel-size {}: {} ranks for the model's {} routed experts, of which each must "
      "have "
      "one; at most {} would do",
      layout.data, layout.stage_ranks(), config.n_routed_experts,
      config.n_routed_experts / layout.tensor);
}

}  // namespace

Status CheckLayout(const ModelConfig& config, const ParallelLayout& layout) {
  if (layout.pipeline < 1 || layout.pipeline > config.num_layers) {
    return InvalidArgument(
        "--pipeline-parallel-size {}: the model has {}, and each stage needs one; at most {} would "
        "do",
        layout.pipeline, Counted(config.num_layers, "layer"), config.num_layers);
  }
  if (layout.bf16_residual && layout.pipeline == 1) {
    return InvalidArgument(
        "--bf16-residual: one stage hands nothing on; leave it out, or take "
        "--pipeline-parallel-size 2");
  }
  TRY(CheckTensorParallel(config, layout));
  return CheckDataParallel(config, layout);
}

}  // namespace fathom
