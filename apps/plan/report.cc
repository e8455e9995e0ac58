#include "report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <limits>
#include <utility>

#include "base/printable.h"

namespace fathom {
namespace {

namespace json = boost::json;

json::object ToJson(const ParallelLayout& layout) {
  return {{"name", Describe(layout)},
          {"tensor_parallel_size", layout.tensor},
          {"data_parallel_size", layout.data},
          {"pipeline_parallel_size", layout.pipeline},
          {"enable_expert_parallel", layout.experts}};
}

json::object ToJson(const RankPlan& rank) {
  json::object items;
  for (const MemoryNeed& need : rank.memory.needs.items) items[need.name] = need.bytes.value_or(0);
  return {{"items", std::move(items)},
          {"replicated_weights", rank.replicated_bytes},
          {"kv_cache", rank.memory.kv_cache_bytes()},
          {"kv_cache_tokens", rank.memory.num_pages * kPageTokens},
          {"total", rank.memory.total_bytes()},
          {"recorded_steps", rank.memory.needs.recorded_steps}};
}

json::object ToJson(const PlannedDecode& decode) {
  json::object parts;
  for (const StepPart& part : decode.parts) {
    parts[part.name] = {{"bytes", part.bytes},
                        {"operations", part.operations},
                        {"peer_bytes", part.peer_bytes},
                        {"network_bytes", part.network_bytes},
                        {"ms", 1e3 * part.seconds}};
  }
  return {{"batch_size", decode.batch},
          {"fits", decode.fits},
          {"exceeds_max_num_seqs", decode.too_many},
          {"step_ms", 1e3 * decode.seconds},
          {"tokens_per_s", decode.tokens_per_s},
          {"parts", std::move(parts)}};
}

json::object ToJson(const LayoutReport& layout) {
  json::array ranks, decodes, prefills;
  for (const RankPlan& rank : layout.plan.ranks) ranks.push_back(ToJson(rank));
  for (const PlannedDecode& decode : layout.decodes) decodes.push_back(ToJson(decode));
  for (const PlannedPrefill& prefill : layout.prefills) {
    prefills.push_back({{"input_len", prefill.tokens},
                        {"ms", 1e3 * prefill.seconds},
                        {"tokens_per_s", static_cast<double>(prefill.tokens) / prefill.seconds}});
  }
  json::object out = ToJson(layout.plan.layout);
  out["group_kv_cache_tokens"] = layout.plan.group_cache_tokens();
  out["kv_cache_tokens"] = layout.plan.group_cache_tokens() * layout.plan.layout.data;
  out["kv_cache_copies"] = layout.plan.layout.tensor;  // of each token, on ranks of its group
  out["ranks"] = std::move(ranks);
  out["decode"] = std::move(decodes);
  out["prefill"] = std::move(prefills);
  return out;
}

double Gib(double bytes) {
  return bytes / (1 << 30);
}

std::string Milliseconds(double seconds) {
  return fmt::format("{:.2f}", 1e3 * seconds);
}

// Of one layout: what each item and each part of a step takes.
void PrintDetails(const LayoutReport& layout) {
  const size_t number = layout.plan.fullest();
  const RankPlan& rank = layout.plan.ranks[number];
  fmt::print("\nRank {}, than which none has less room, GiB\n", number);
  for (const MemoryNeed& need : rank.memory.needs.items) {
    fmt::print("  {:<30}{:>9.2f}{}\n", need.name, Gib(static_cast<double>(need.bytes.value_or(0))),
               need.remark.empty() ? "" : fmt::format("  {}", need.remark));
    if (need.name == "weights" && rank.replicated_bytes > 0) {
      fmt::print("  {:<30}{:>9.2f}\n", "  of these on all ranks",
                 Gib(static_cast<double>(rank.replicated_bytes)));
    }
  }
  fmt::print("  {:<30}{:>9.2f}\n", "KV cache",
             Gib(static_cast<double>(rank.memory.kv_cache_bytes())));
  if (const int64_t copies = layout.plan.layout.tensor; copies > 1) {
    fmt::print("    of the same tokens on {} ranks: latents are not cut, and --tp makes no room\n",
               copies);
  }
  if (const int64_t steps = rank.memory.needs.recorded_steps; steps > 0) {
    fmt::print("Start-up records {} steps; how many seconds that takes is not measured.\n", steps);
  }
  for (const PlannedDecode& decode : layout.decodes) {
    fmt::print("\nA step of {}{}: {} ms\n", Counted(decode.batch, "request"),
               layout.plan.layout.data > 1 ? " in each group" : "", Milliseconds(decode.seconds));
    for (const StepPart& part : decode.parts) {
      fmt::print("  {:<30}{:>9} ms{:>10.2f} GB{:>10.3f} TFLOP\n", part.name,
                 Milliseconds(part.seconds), (part.bytes + part.peer_bytes) / 1e9,
                 part.operations / 1e12);
    }
  }
}

std::vector<std::string> Names(const std::vector<const LayoutReport*>& layouts) {
  std::vector<std::string> names;
  for (const LayoutReport* layout : layouts) names.push_back(Describe(layout->plan.layout));
  return names;
}

std::vector<const LayoutReport*> InOrder(const PlanReport& report) {
  std::vector<const LayoutReport*> layouts;
  for (const LayoutReport& layout : report.layouts) layouts.push_back(&layout);
  return layouts;
}

void PrintHosts(const ReportedHosts& hosts) {
  fmt::print(
      "{} hosts with {} each; between them {:g} GB/s of each GPU and {:g} us an exchange, {}\n",
      hosts.count, Counted(hosts.gpus_each, "GPU"), hosts.network.bytes_per_s / 1e9,
      hosts.network.exchange_s * 1e6, hosts.assumed ? "assumed and not measured" : "as was said");
  if (hosts.gpus_each == 1) return;
  fmt::print(
      "Not counted: hosts with several GPUs do not record their steps, but launch each kernel\n");
}

}  // namespace

double LayoutReport::latency() const {
  for (const PlannedDecode& decode : decodes) {
    if (decode.fits) return decode.seconds;
  }
  return std::numeric_limits<double>::infinity();
}

const PlannedDecode* LayoutReport::fastest() const {
  const PlannedDecode* most = nullptr;
  for (const PlannedDecode& decode : decodes) {
    if (!decode.fits) continue;
    if (most == nullptr || decode.tokens_per_s > most->tokens_per_s) most = &decode;
  }
  return most;
}

std::vector<const LayoutReport*> PlanReport::ByThroughput() const {
  std::vector<const LayoutReport*> layouts = InOrder(*this);
  std::stable_sort(layouts.begin(), layouts.end(),
                   [](const LayoutReport* a, const LayoutReport* b) {
                     const auto rate = [](const LayoutReport* of) {
                       return of->fastest() == nullptr ? 0 : of->fastest()->tokens_per_s;
                     };
                     return rate(a) > rate(b);
                   });
  return layouts;
}

void PrintJson(const PlanReport& report) {
  json::array layouts, refused;
  for (const LayoutReport& layout : report.layouts) layouts.push_back(ToJson(layout));
  for (const auto& [layout, reason] : report.refused) {
    json::object entry = ToJson(layout);
    entry["reason"] = reason;
    refused.push_back(std::move(entry));
  }
  const auto names = [](const std::vector<const LayoutReport*>& of) {
    return json::value_from(Names(of));
  };
  const ReportedHosts& hosts = report.hosts;
  const json::object out = {{"model", report.model},
                            {"num_layers", report.config.num_layers},
                            {"weights", report.config.fp8 ? "fp8" : "bf16"},
                            {"kv_cache", report.kv_cache},
                            {"gpu", report.gpu.name},
                            {"gpu_figures_given", report.figures_given},
                            {"memory_bytes", report.gpu.memory_bytes},
                            {"context", report.context},
                            {"hosts", hosts.count},
                            {"network_gb_s", hosts.network.bytes_per_s / 1e9},
                            {"network_us", hosts.network.exchange_s * 1e6},
                            {"network_assumed", hosts.assumed},
                            {"layouts", std::move(layouts)},
                            {"refused", std::move(refused)},
                            {"best_for_latency", names(InOrder(report))},
                            {"best_for_throughput", names(report.ByThroughput())}};
  fmt::print("{}\n", json::serialize(out));
}

void PrintTable(const PlanReport& report) {
  fmt::print("{}, {}, {} weights, {} KV cache, on {} with {:.1f} GiB{}\n", report.model,
             Counted(report.config.num_layers, "layer"), report.config.fp8 ? "FP8" : "BF16",
             report.kv_cache, report.gpu.name, Gib(report.gpu.memory_bytes),
             report.figures_given ? " and figures that were given" : "");
  if (report.hosts.count > 1) PrintHosts(report.hosts);
  if (!report.layouts.empty()) {
    fmt::print(
        "Predicted times in ms: of a step at context {} by requests in each group, and of a prompt "
        "alone\n\n{:<25}{:>13}{:>14}",
        report.context, "layout", "weights GiB", "cache tokens");
    for (const PlannedDecode& decode : report.layouts.front().decodes) {
      fmt::print("{:>10}", decode.batch);
    }
    for (const PlannedPrefill& prefill : report.layouts.front().prefills) {
      fmt::print("{:>15}", fmt::format("prompt {}", prefill.tokens));
    }
    fmt::print("\n");
  }
  for (const LayoutReport& layout : report.layouts) {
    const LayoutPlan& plan = layout.plan;
    fmt::print("{:<25}{:>13.2f}{:>14}", Describe(plan.layout),
               Gib(static_cast<double>(
                   plan.ranks[plan.fullest()].memory.needs.items[0].bytes.value_or(0))),
               plan.group_cache_tokens() * plan.layout.data);
    for (const PlannedDecode& decode : layout.decodes) {
      fmt::print("{:>10}", decode.fits       ? Milliseconds(decode.seconds)
                           : decode.too_many ? "too many"
                                             : "no room");
    }
    for (const PlannedPrefill& prefill : layout.prefills) {
      fmt::print("{:>15}", Milliseconds(prefill.seconds));
    }
    fmt::print("\n");
  }
  const auto beyond = [](const PlannedDecode& decode) { return decode.too_many; };
  if (!report.layouts.empty() && std::ranges::any_of(report.layouts.front().decodes, beyond)) {
    fmt::print("too many: --max-num-seqs is less\n");
  }
  for (const auto& [layout, reason] : report.refused) {
    fmt::print("{}: {}\n", Describe(layout), reason);
  }
  if (report.layouts.size() == 1) PrintDetails(report.layouts.front());
  if (report.layouts.size() < 2) return;
  const std::vector<const LayoutReport*> most = report.ByThroughput();
  fmt::print("\nbest for latency: {}\n", fmt::join(Names(InOrder(report)), "; "));
  const PlannedDecode* fastest = most.front()->fastest();
  if (fastest == nullptr) return;
  fmt::print("best for throughput of these batches, with {:.0f} tokens/s of {} in each group: {}\n",
             fastest->tokens_per_s, Counted(fastest->batch, "request"),
             fmt::join(Names(most), "; "));
}

}  // namespace fathom
