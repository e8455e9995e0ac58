#include "offline_report.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

#include "base/printable.h"
#include "source_hashes.h"

namespace fathom {
namespace {

namespace json = boost::json;

json::value OrNull(const std::optional<double>& value, double unit) {
  return value ? json::value(*value / unit) : json::value();
}

json::object PeakShares(const Machine& machine, double operations_per_s) {
  const auto share = [&](const std::optional<double>& peak) {
    return peak ? json::value(operations_per_s / *peak) : json::value();
  };
  return {{"fp32", operations_per_s / machine.peaks.fp32},
          {"bf16", share(machine.peaks.bf16)},
          {"int8", share(machine.peaks.int8)},
          {"fp8", share(machine.fp8_peak)}};
}

// The fastest arithmetic that the machine has.
std::pair<const char*, double> HighestPeak(const ArithmeticPeaks& peaks) {
  std::pair<const char*, double> highest = {"fp32", peaks.fp32};
  if (peaks.bf16.value_or(0) > highest.second) highest = {"bf16", *peaks.bf16};
  if (peaks.int8.value_or(0) > highest.second) highest = {"int8", *peaks.int8};
  return highest;
}

json::array Array(const std::vector<double>& values) {
  return json::array(values.begin(), values.end());
}

json::object ToJson(const BatchResult& r, const MeasuredModel& model, const Machine& machine) {
  json::object out = {{"batch_size", r.shape.batch_size}, {"input_len", r.shape.input_len}};
  if (!r.prefill_runs.empty()) {
    const auto [name, peak] = HighestPeak(machine.peaks);
    const double floor = machine.Floor(r.prefill_work, model.linear_in_fp8);
    out["prefill_tokens_per_s"] = r.prefill();
    out["prefill_runs"] = Array(r.prefill_runs);
    out["prefill_operations_per_token"] = r.prefill_work.operations / r.prompt_tokens();
    out["peak_share"] = r.prefill_rate() / peak;
    out["peak_share_of"] = name;
    out["peak_shares"] = PeakShares(machine, r.prefill_rate());
    out["prefill_floor_ms"] = 1e3 * floor;
    out["prefill_floor_share"] = floor * r.prefill() / r.prompt_tokens();
  }
  if (!r.decode_runs.empty()) {
    const double floor = machine.Floor(r.step, model.linear_in_fp8);
    out["decode_tokens_per_s"] = r.decode();
    out["decode_runs"] = Array(r.decode_runs);
    out["decode_step_ms"] = 1e3 * Median(r.step_seconds);
    out["decode_tokens_per_step"] = r.tokens_per_step;
    out["decode_context"] = r.context;
    out["experts_per_layer"] = r.experts;
    out["unique_bytes_per_step"] = r.step.bytes();
    out["weight_bytes_per_step"] = r.step.weight_bytes;
    out["cache_bytes_per_step"] = r.step.cache_read_bytes + r.step.cache_written_bytes;
    out["operations_per_step"] = r.step.operations;
    out["bandwidth_share"] = r.step.bytes() * r.steps_per_s() / machine.read_bandwidth;
    out["decode_peak_shares"] = PeakShares(machine, r.step.operations * r.steps_per_s());
    out["decode_floor_ms"] = 1e3 * floor;
    out["decode_floor_share"] = floor * r.steps_per_s();
  }
  return out;
}

std::string Percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string PercentOf(const std::optional<double>& peak, double rate) {
  return peak ? Percent(rate / *peak) : "-";
}

std::string PeakText(const std::optional<double>& peak) {
  return peak ? fmt::format("{:.0f}", *peak / 1e9) : "not available";
}

}  // namespace

void PrintJson(const OfflineOptions& o, const MeasuredModel& model, const Machine& machine) {
  json::object out = RunRecord();
  out["benchmark"] = "offline";
  out["model"] = model.name;
  out["load_format"] = o.engine.load_format;
  out["num_layers"] = model.layers;
  out["weights"] = model.weights;
  out["kv_cache"] = model.kv_cache;
  out["ops"] = o.engine.ops;
  out["device"] = machine.name;
  if (!machine.driver.empty()) {
    out["cuda_driver"] = machine.driver;  // and tools/gpu_check.sh adds the sources of CUDA
  } else {
    out["sources"] = CpuSources();
  }
  out["threads"] = machine.threads;
  out["output_len"] = o.output_len;
  out["repeats"] = o.repeats;
  out["temperature"] = o.temperature;
  if (!o.engine.synthetic_routing.empty()) out["synthetic_routing"] = o.engine.synthetic_routing;
  if (o.drafts() > 0) out["speculative_config"] = o.engine.speculative_config;
  if (o.engine.synthetic_acceptance >= 0) {
    out["synthetic_acceptance"] = o.engine.synthetic_acceptance;
  }
  out["read_bandwidth_gb_s"] = machine.read_bandwidth / 1e9;
  out["fp32_peak_gflops"] = machine.peaks.fp32 / 1e9;
  out["bf16_peak_gflops"] = OrNull(machine.peaks.bf16, 1e9);
  out["int8_peak_gops"] = OrNull(machine.peaks.int8, 1e9);
  out["fp8_peak_gflops"] = OrNull(machine.fp8_peak, 1e9);
  out["weight_bytes"] = model.weight_bytes;
  out["peak_resident_bytes"] = model.peak_resident_bytes;
  if (const RecordedSteps& recorded = model.recorded; recorded.steps > 0) {
    out["recorded_steps"] = recorded.steps;
    out["recorded_bytes"] = recorded.bytes;
    out["recording_s"] = recorded.seconds;
    if (!recorded.times.empty()) out["step_timing_s"] = recorded.timing_seconds;
  }
  json::array results, prefills;
  for (const BatchResult& r : model.results) results.push_back(ToJson(r, model, machine));
  for (const BatchResult& r : model.prefills) prefills.push_back(ToJson(r, model, machine));
  // The first batch size once more, for whoever wants one number.
  for (const auto& member : results.front().as_object()) {
    out.insert_or_assign(member.key(), member.value());
  }
  out["results"] = std::move(results);
  out["prefills"] = std::move(prefills);
  fmt::print("{}\n", json::serialize(out));
}

void PrintTable(const OfflineOptions& o, const MeasuredModel& model, const Machine& m) {
  fmt::print("{}, {}, {} weights{}, {} KV cache, ops {}; {}, median of {}{}\n", model.name,
             Counted(model.layers, "layer"), model.weights,
             o.engine.load_format == "dummy" ? " (random)" : "", model.kv_cache, o.engine.ops,
             Counted(o.output_len, "decode step"), o.repeats,
             o.prefill_lens.empty()
                 ? ""
                 : fmt::format(", prefills of {}", std::max(o.repeats, kLeastPrefills)));
  fmt::print(
      "{}{}: reads {:.1f} GB/s; peaks in 10^9 operations/s: fp32 {}, bf16 {}, int8 {}, fp8 {}\n",
      m.name, m.driver.empty() ? ", " + Counted(m.threads, "thread") : "", m.read_bandwidth / 1e9,
      PeakText(m.peaks.fp32), PeakText(m.peaks.bf16), PeakText(m.peaks.int8), PeakText(m.fp8_peak));
  fmt::print("weights {:.2f} GB; the process had at most {:.2f} GB\n",
             static_cast<double>(model.weight_bytes) / 1e9,
             static_cast<double>(model.peak_resident_bytes) / 1e9);
  if (const RecordedSteps& recorded = model.recorded; recorded.steps > 0) {
    fmt::print("start-up recorded {} steps in {:.1f} s, which took {:.2f} GB\n", recorded.steps,
               recorded.seconds, static_cast<double>(recorded.bytes) / 1e9);
  }
  fmt::print("floor: the bytes at the read bandwidth, or the operations at the peaks\n\n");
  const char* prefill = "{:>6} {:>7} | {:>9} {:>8} {:>8} {:>8} {:>8} {:>9}\n";
  fmt::print(fmt::runtime(prefill), "", "prompt", "prefill", "of fp32", "of bf16", "of int8",
             "of fp8", "of the");
  fmt::print(fmt::runtime(prefill), "batch", "tokens", "tokens/s", "peak", "peak", "peak", "peak",
             "floor");
  for (const std::vector<BatchResult>* results : {&model.prefills, &model.results}) {
    for (const BatchResult& r : *results) {
      if (r.prefill_runs.empty()) continue;
      const double rate = r.prefill_rate(), floor = m.Floor(r.prefill_work, model.linear_in_fp8);
      fmt::print(fmt::runtime(prefill), r.shape.batch_size, r.shape.input_len,
                 fmt::format("{:.1f}", r.prefill()), Percent(rate / m.peaks.fp32),
                 PercentOf(m.peaks.bf16, rate), PercentOf(m.peaks.int8, rate),
                 PercentOf(m.fp8_peak, rate), Percent(floor * r.prefill() / r.prompt_tokens()));
    }
  }
  const char* decode = "{:>6} {:>7} | {:>9} {:>9} {:>8} {:>9} {:>9} {:>10} {:>9} {:>9}\n";
  fmt::print("\n");
  fmt::print(fmt::runtime(decode), "", "prompt", "decode", "ms", "distinct", "unique", "Gop",
             "of read", "floor,", "of the");
  fmt::print(fmt::runtime(decode), "batch", "tokens", "tokens/s", "a step", "experts", "GB/step",
             "a step", "bandwidth", "ms", "floor");
  for (const BatchResult& r : model.results) {
    const double floor = m.Floor(r.step, model.linear_in_fp8);
    fmt::print(
        fmt::runtime(decode), r.shape.batch_size, r.shape.input_len,
        fmt::format("{:.1f}", r.decode()), fmt::format("{:.2f}", 1e3 * Median(r.step_seconds)),
        r.experts > 0 ? fmt::format("{:.0f}", r.experts) : "-",
        fmt::format("{:.4f}", r.step.bytes() / 1e9), fmt::format("{:.3f}", r.step.operations / 1e9),
        Percent(r.step.bytes() * r.steps_per_s() / m.read_bandwidth),
        fmt::format("{:.2f}", 1e3 * floor), Percent(floor * r.steps_per_s()));
  }
}

}  // namespace fathom
