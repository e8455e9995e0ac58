// What `fathom bench offline` measured, and how it is said.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench.h"
#include "cpu/peak.h"
#include "load_engine.h"
#include "meter.h"
#include "speculation_flag.h"
#include "step_work.h"

namespace fathom {

inline constexpr int32_t kLeastPrefills = 3;  // of prompts that are timed alone

struct OfflineOptions {
  EngineSettings engine;
  std::vector<int32_t> batch_sizes = {1};
  std::vector<int32_t> input_lens = {512};
  std::vector<int32_t> prefill_lens;  // timed alone; none: with each batch
  int32_t output_len = 64;
  int32_t repeats = 3;
  int64_t read_bytes = int64_t{4} << 30;
  uint64_t seed = 0;
  float temperature = 0;
  bool json = false;

  // Of each decode; a flag that makes no sense is refused later.
  int32_t drafts() const {
    if (engine.speculative_config.empty()) return 0;
    const Result<Speculation> speculation = ParseSpeculation(engine.speculative_config);
    return speculation.ok() ? speculation->num_tokens : 0;
  }
};

struct Machine {
  std::string name, driver;  // driver: of a GPU
  int threads = 0;
  double read_bandwidth = 0;  // bytes per second
  ArithmeticPeaks peaks;
  std::optional<double> fp8_peak;  // of a GPU

  // Seconds below which nothing with these limits computes `work`.
  double Floor(const StepWork& work, bool linear_in_fp8) const {
    const double most = std::max({peaks.fp32, peaks.bf16.value_or(0), peaks.int8.value_or(0)});
    const double of_linear = linear_in_fp8 ? fp8_peak.value_or(most) : most;
    const double arithmetic =
        work.linear_operations / of_linear + (work.operations - work.linear_operations) / most;
    return std::max(arithmetic, work.bytes() / read_bandwidth);
  }
};

struct BatchResult {
  BatchShape shape;
  std::vector<double> prefill_runs, decode_runs;  // tokens per second
  std::vector<double> step_seconds;               // of all decode steps
  double context = 0;
  double tokens_per_step = 0;  // of all rows, with drafts that stand
  double experts = 0;          // DecodeTimes'
  StepWork step;               // of decode
  StepWork prefill_work;       // of all prompts

  double prompt_tokens() const { return double{1} * shape.batch_size * shape.input_len; }
  double prefill() const { return Median(prefill_runs); }  // of a run that has it
  double prefill_rate() const { return prefill_work.operations / prompt_tokens() * prefill(); }
  double decode() const { return Median(decode_runs); }
  double steps_per_s() const { return decode() / tokens_per_step; }
};

// What is left of a model once its memory is given back.
struct MeasuredModel {
  std::string name;
  int32_t layers = 0;
  std::string_view weights, kv_cache;
  size_t weight_bytes = 0;
  int64_t peak_resident_bytes = 0;
  bool linear_in_fp8 = false;  // FP8 weights that meet FP8 activations
  RecordedSteps recorded;      // at start-up, on a GPU
  std::vector<BatchResult> results, prefills;
};

// One JSON object.
void PrintJson(const OfflineOptions& o, const MeasuredModel& model, const Machine& machine);
// For a terminal.
void PrintTable(const OfflineOptions& o, const MeasuredModel& model, const Machine& m);

}  // namespace fathom
