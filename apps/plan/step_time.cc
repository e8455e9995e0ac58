#include "step_time.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "layout_plan.h"
#include "model/attention.h"
#include "model/shard.h"
#include "parallel/peer_view.h"
#include "step_work.h"

namespace fathom {
namespace {

constexpr double kBf16 = 2, kFp32 = 4;

// What kernels take, by what limits them.
class StepTimer {
 public:
  StepTimer(const StepTimeModel& model, const PlannedStep& step, int stage)
      : m_(model),
        c_(model.planned.config),
        gpu_(model.gpu),
        step_(step),
        shard_{.layout = model.layout, .stage = stage},
        elsewhere_(MostElsewhere(model, stage)),
        ranks_(model.layout.tensor),
        heads_(static_cast<double>(shard_.Heads(c_.num_heads).size())),
        tokens_(static_cast<double>(step.rows * step.tokens)),
        linear_(c_.fp8 ? WeightFormat::kFp8.bytes_per_weight() : kBf16) {}

  std::vector<StepPart> Run() {
    const Share layers = LayersOf(c_, shard_, m_.planned.sizes);
    for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
      Project();
      Attend();
      for (int norm = 0; norm < 2; ++norm) Norm();
      c_.IsMoeLayer(static_cast<int>(layer)) ? Experts() : DenseMlp();
    }
    if (shard_.last_stage()) {
      Head();
    } else {
      const double width = m_.layout.bf16_residual ? kBf16 : kFp32;
      Send("handing on to the next stage", tokens_ * c_.hidden_size * width, 1, elsewhere_.after);
    }
    if (m_.layout.pipeline > 1) {
      Send("drawn tokens to all stages", static_cast<double>(step_.rows) * kFp32,
           m_.layout.pipeline - 1, elsewhere_.stages);
    }
    std::erase_if(parts_, [](const StepPart& part) { return part.seconds == 0; });
    return std::move(parts_);
  }

 private:
  // Products of `weights`, in so many kernels.
  struct Product {
    double weights = 0, tokens = 0, width = 0;
    bool fp8 = false;
    int kernels = 1;
  };

  StepPart& Part(std::string_view name) {
    for (StepPart& part : parts_) {
      if (part.name == name) return part;
    }
    return parts_.emplace_back(StepPart{.name = name});
  }

  double OperationsPerSecond(bool fp8) const {
    return fp8 ? gpu_.fp8_operations_per_s * gpu_.fp8_product_share
               : gpu_.bf16_operations_per_s * gpu_.bf16_product_share;
  }
  double ReadRate() const { return gpu_.read_bytes_per_s * gpu_.product_read_share; }

  void Multiply(std::string_view name, const Product& product) {
    StepPart& part = Part(name);
    const double bytes = product.weights * product.width;
    const double operations = 2 * product.weights * product.tokens;
    part.bytes += bytes;
    part.operations += operations;
    part.seconds += std::max(bytes / ReadRate(), operations / OperationsPerSecond(product.fp8)) +
                    product.kernels * gpu_.launch_s;
  }
  void Linear(std::string_view name, double weights, int kernels = 1) {
    Multiply(name, {.weights = weights,
                    .tokens = tokens_,
                    .width = linear_,
                    .fp8 = c_.fp8,
                    .kernels = kernels});
  }
  // What only passes over activations.
  void Pass(std::string_view name, double bytes, int kernels) {
    StepPart& part = Part(name);
    part.bytes += bytes;
    part.seconds += bytes / ReadRate() + kernels * gpu_.launch_s;
  }
  // Of a stage's ranks the one with most of them; a host's GPUs send at the same time.
  static PeersElsewhere MostElsewhere(const StepTimeModel& model, int stage) {
    PeersElsewhere most;
    const int each = model.layout.stage_ranks();
    for (int rank = stage * each; rank < (stage + 1) * each; ++rank) {
      const PeersElsewhere of = ElsewhereOf(model.layout, model.gpus_each, rank);
      most.tensor = std::max(most.tensor, of.tensor);
      most.experts = std::max(most.experts, of.experts);
      most.after = std::max(most.after, of.after);
      most.stages = std::max(most.stages, of.stages);
    }
    return most;
  }

  // What a rank has to so many others, `elsewhere` of them on other hosts, to each equally much, in
  // rounds of so many exchanges: NCCL takes it there while it takes the rest over links.
  void OverHosts(std::string_view name, double bytes, double peers, double elsewhere,
                 double exchanges) {
    const double out = bytes * elsewhere / peers;
    Exchange(name, bytes,
             exchanges * m_.network.exchange_s +
                 std::max(out / m_.network.bytes_per_s, (bytes - out) / gpu_.peer_bytes_per_s));
    Part(name).network_bytes += out;
  }
  // Rounds that a message of so many bytes takes.
  static double Rounds(double bytes) {
    return std::max(1.0, std::ceil(bytes / static_cast<double>(kWindowBytes)));
  }

  void Exchange(std::string_view name, double peer_bytes, double seconds) {
    StepPart& part = Part(name);
    part.peer_bytes += peer_bytes;
    part.seconds += seconds;
  }

  void Project() {
    constexpr std::string_view kName = "attention's products";
    const double hidden = c_.hidden_size, q = heads_ * c_.qk_head_dim();
    if (c_.q_lora_rank > 0) {
      Linear(kName, (c_.q_lora_rank + c_.latent_dim()) * hidden);
      Linear(kName, q * c_.q_lora_rank);
      Pass("norms", tokens_ * c_.q_lora_rank * 5, 1);
    } else {
      Linear(kName, (q + c_.latent_dim()) * hidden);
    }
    Linear(kName, hidden * heads_ * c_.v_head_dim);
  }

  void Attend() {
    constexpr std::string_view kName = "attention";
    const double latent = c_.kv_lora_rank, rope = c_.qk_rope_head_dim, vdim = c_.v_head_dim;
    const double nope = c_.qk_nope_head_dim, up = heads_ * latent * (nope + vdim);
    const auto rows = static_cast<double>(step_.rows), n = static_cast<double>(step_.tokens);
    const double pairs = rows * n * (step_.context + (n + 1) / 2);
    const double position = static_cast<double>(m_.kv.page_bytes()) / kPageTokens;
    Pass(kName, 2 * kBf16 * tokens_ * (heads_ * rope + c_.latent_dim()), 3);
    double bytes = 0, operations = 0, seconds = 0;
    if (step_.absorbed) {
      Multiply("attention's products",
               {.weights = up, .tokens = tokens_, .width = kBf16, .fp8 = false, .kernels = 2});
      bytes = rows * step_.context * position;
      operations = 2 * heads_ * (2 * latent + rope) * pairs;
      seconds = std::max(bytes / (gpu_.read_bytes_per_s * gpu_.cache_read_share),
                         operations / (gpu_.bf16_operations_per_s * gpu_.absorbed_share));
    } else {
      const double context = rows * (step_.context + n);
      Multiply("attention's products",
               {.weights = up, .tokens = context, .width = linear_, .fp8 = c_.fp8, .kernels = 2});
      bytes = 2 * kBf16 * context * heads_ * (nope + vdim);
      operations = 2 * heads_ * (nope + rope + vdim) * pairs;
      seconds =
          bytes / ReadRate() + operations / (gpu_.bf16_operations_per_s * gpu_.expanded_share);
    }
    StepPart& part = Part(kName);
    part.bytes += bytes;
    part.operations += operations;
    part.seconds += seconds;
  }

  // The residual is read and written in fp32; the branch, the normed copy and its codes follow.
  void Norm() {
    const double numbers = c_.hidden_size * tokens_, bytes = kBf16 * numbers, peers = ranks_ - 1;
    const bool small =
        PeerExchange::TakesPackets(static_cast<size_t>(bytes), static_cast<int>(ranks_));
    const double owned = small ? numbers : numbers / ranks_;
    // Of what others own the normed copy is read and written, and codes.
    Pass("norms", 13 * owned + 5 * (numbers - owned), 1);
    if (ranks_ == 1) return;
    if (small) return Send("all-reduce", bytes, peers, elsewhere_.tensor);
    // Parts to their owners, with a barrier between, and what these normed to all.
    const double moved = 2 * bytes * peers / ranks_;
    if (elsewhere_.tensor > 0) {
      return OverHosts("all-reduce", moved, peers, elsewhere_.tensor, 2 * Rounds(bytes));
    }
    Exchange("all-reduce", 2 * moved, 4 * gpu_.barrier_s + 2 * moved / gpu_.peer_bytes_per_s);
  }

  // What a rank has to each of so many others, `elsewhere` of them on other hosts.
  void Send(std::string_view name, double bytes, double peers, double elsewhere) {
    if (elsewhere > 0) return OverHosts(name, bytes * peers, peers, elsewhere, Rounds(bytes));
    const bool small =
        PeerExchange::TakesPackets(static_cast<size_t>(bytes), static_cast<int>(peers) + 1);
    Exchange(name, bytes * peers,
             small ? gpu_.small_all_reduce_s + (peers - 1) * gpu_.small_all_reduce_s_per_peer +
                         bytes * peers * gpu_.small_all_reduce_s_per_byte
                   : 2 * gpu_.barrier_s + bytes * peers / gpu_.peer_bytes_per_s);
  }

  void DenseMlp() {
    const auto inter = static_cast<double>(shard_.Of(c_.intermediate_size).size());
    Linear("dense MLPs", 3 * c_.hidden_size * inter, 2);
  }

  void Experts() {
    const double hidden = c_.hidden_size, topk = c_.num_experts_per_tok;
    const double shared = c_.n_shared_experts, routed = c_.n_routed_experts;
    const bool whole = m_.layout.expert_parallel(), travel = m_.layout.exchanges_tokens();
    const double world_tokens = travel ? tokens_ * static_cast<double>(step_.groups) : tokens_;
    const double mine = static_cast<double>(shard_.Experts(c_.n_routed_experts).size()) / routed;
    const auto inter = static_cast<double>(shard_.OfExpert(c_.moe_intermediate_size).size());
    const double drawn = step_.experts > 0
                             ? step_.experts
                             : ExpectedExperts(c_.n_routed_experts, c_.num_experts_per_tok,
                                               static_cast<int64_t>(world_tokens));
    Pass("routers", routed * hidden * kBf16, 1);
    // Ranks of a group share out who sends its tokens.
    const double sent = travel ? tokens_ / ranks_ : tokens_;
    const double own = whole ? sent : world_tokens;  // of which it computes shared experts
    const double pairs = world_tokens * topk * mine + own * shared;
    const double expert = 3 * hidden * inter;
    const double bytes = (drawn * mine + shared) * expert * linear_;
    // Pairs are gathered or quantised, and summed; in BF16 they are copied once more.
    const double passes = hidden * (own * 4 + pairs * (c_.fp8 ? 3 : 5));
    const double operations = 2 * expert * pairs;
    StepPart& part = Part("experts");
    part.bytes += bytes + passes;
    part.operations += operations;
    part.seconds +=
        std::max(bytes / (gpu_.read_bytes_per_s * gpu_.expert_read_share),
                 operations / (OperationsPerSecond(c_.fp8) * gpu_.expert_product_share)) +
        passes / ReadRate() + 5 * gpu_.launch_s;
    if (travel) ExchangeTokens(sent, world_tokens * (whole ? topk * mine : 1));
  }

  // Tokens go to all peers, and what comes back is each of their experts' outputs, or of experts
  // that are cut each rank's sum. Each pair that arrives is written and its output read, and so is
  // each output where it is summed.
  void ExchangeTokens(double sent, double pairs) {
    const double peers = m_.layout.stage_ranks() - 1, world = m_.layout.stage_ranks();
    const double outputs =
        sent * (m_.layout.cuts_over_groups() ? world : double(c_.num_experts_per_tok));
    const double token_bytes = c_.hidden_size * kBf16;
    const double there = sent * token_bytes * peers, back = outputs * token_bytes * peers / world;
    const double passes = (2 * pairs + outputs) * token_bytes;
    const double at_a_time = static_cast<double>(m_.planned.ops.exchange_tokens) / world;
    const double pieces = std::max(1.0, sent / at_a_time);
    if (elsewhere_.experts > 0) {
      OverHosts("exchange of experts' tokens", there + back, peers, elsewhere_.experts,
                2 * std::ceil(pieces));
      return Pass("exchange of experts' tokens", passes, 2 * static_cast<int>(std::ceil(pieces)));
    }
    Exchange("exchange of experts' tokens", there + back,
             (there + back) / gpu_.peer_bytes_per_s + passes / ReadRate() +
                 pieces * (4 * gpu_.barrier_s + 2 * gpu_.launch_s));
  }

  void Head() {
    const auto vectors = static_cast<double>(step_.rows);
    const auto vocab = static_cast<double>(shard_.Of(c_.vocab_size).size());
    Multiply("head", {.weights = vocab * c_.hidden_size, .tokens = vectors, .width = kBf16});
    StepPart& part = Part("sampling");
    part.bytes += vectors * c_.vocab_size * kFp32;
    part.seconds += vectors * c_.vocab_size * kFp32 * gpu_.logit_reads / gpu_.read_bytes_per_s;
    if (ranks_ == 1) return;
    const double gathered = vectors * (c_.vocab_size - vocab) * kFp32;
    if (elsewhere_.tensor > 0) {
      return OverHosts("logits of all ranks", gathered, ranks_ - 1, elsewhere_.tensor,
                       Rounds(gathered));
    }
    Exchange("logits of all ranks", gathered,
             2 * gpu_.barrier_s + gathered / gpu_.peer_bytes_per_s);
  }

  const StepTimeModel& m_;
  const ModelConfig& c_;
  const GpuFigures& gpu_;
  const PlannedStep& step_;
  const Shard shard_;  // of the stage's first rank, of which no other has a larger part
  const PeersElsewhere elsewhere_;
  const int ranks_;  // of a group
  const double heads_, tokens_, linear_;
  std::vector<StepPart> parts_;
};

// Of stages that each begin a turn together: the time of all turns. `seconds(stage, turn)`: what
// the stage does in it; 0 if nothing.
template <class SecondsOf>
double SecondsOfTurns(int stages, int64_t turns, const SecondsOf& seconds) {
  double sum = 0;
  for (int64_t turn = 0; turn < turns; ++turn) {
    double longest = 0;
    for (int stage = 0; stage < stages; ++stage) longest = std::max(longest, seconds(stage, turn));
    sum += longest;
  }
  return sum;
}

}  // namespace

std::vector<StepPart> PartsOfStep(const StepTimeModel& model, const PlannedStep& step) {
  const int stages = model.layout.pipeline;
  if (stages == 1) return StepTimer(model, step, 0).Run();
  const int64_t steps = std::min<int64_t>(stages, step.rows);  // at the same time
  PlannedStep share = step;
  share.rows = (step.rows + steps - 1) / steps;
  std::vector<StepPart> parts;
  std::vector<double> of_stage;
  for (int stage = 0; stage < stages; ++stage) {
    const std::vector<StepPart> here = StepTimer(model, share, stage).Run();
    of_stage.push_back(Seconds(here));
    for (const StepPart& part : here) {
      const auto same = std::ranges::find(parts, part.name, &StepPart::name);
      StepPart& sum = same != parts.end() ? *same : parts.emplace_back(StepPart{.name = part.name});
      sum.bytes += part.bytes;
      sum.operations += part.operations;
      sum.peer_bytes += part.peer_bytes;
      sum.network_bytes += part.network_bytes;
      sum.seconds += part.seconds;
    }
  }
  // Step i begins in turn i, and each stage has it a turn later than the one before.
  const double round = SecondsOfTurns(stages, stages, [&](int stage, int64_t turn) {
    const int64_t of_step = (turn - stage + stages) % stages;
    return of_step < steps ? of_stage[static_cast<size_t>(stage)] : 0;
  });
  const double waits = round - Seconds(parts);
  if (waits > 0) parts.push_back({.name = "waiting for other stages", .seconds = waits});
  return parts;
}

double Seconds(const std::vector<StepPart>& parts) {
  double seconds = 0;
  for (const StepPart& part : parts) seconds += part.seconds;
  return seconds;
}

double PrefillSeconds(const StepTimeModel& model, int64_t prompt, int64_t chunk) {
  const int stages = model.layout.pipeline;
  const int64_t chunks = (prompt + chunk - 1) / chunk;
  return SecondsOfTurns(stages, chunks + stages - 1, [&](int stage, int64_t turn) {
    const int64_t begin = (turn - stage) * chunk, tokens = std::min(chunk, prompt - begin);
    if (begin < 0 || tokens <= 0) return 0.0;
    const PlannedStep step = {.tokens = tokens,
                              .context = static_cast<double>(begin),
                              .absorbed = tokens <= AbsorbedLimit(model.planned.config)};
    return Seconds(StepTimer(model, step, stage).Run());
  });
}

}  // namespace fathom
