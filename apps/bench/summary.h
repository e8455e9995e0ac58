// What a load test reports of its requests: the figures of `vllm bench serve`, by their names.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "draft_counts.h"

namespace fathom {

struct RequestRecord {
  std::string error;                 // why it failed; empty if it did not
  double sent_s = 0;                 // on a clock that all requests share
  double first_s = 0;                // when the first text came
  double last_s = 0;                 // when the answer was complete
  std::vector<float> inter_token_s;  // between two events with text
  std::string content;               // of a chat's answer
  int32_t prompt_tokens = 0;
  std::optional<int32_t> cached_tokens;  // of the prompt; nothing: the server does not say
  int32_t output_tokens = 0;
  int32_t wanted_tokens = 0;

  bool ok() const { return error.empty(); }
  double ttft_s() const { return first_s - sent_s; }
  double latency_s() const { return last_s - sent_s; }
  // Time per output token after the first. REQUIRES: more than one output token.
  double tpot_s() const { return (latency_s() - ttft_s()) / (output_tokens - 1); }
};

// Bounds in milliseconds that a good request keeps; absent ones do not count.
struct ServiceLevel {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;

  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
  bool Holds(const RequestRecord& record) const;
};

struct Distribution {
  double mean = 0, median = 0, deviation = 0, p99 = 0;
};
// In the values' unit; zeros without values.
Distribution DistributionOf(std::vector<double> values);
// Between the values at its sides, linearly. `sorted` rises and is not empty; 0 <= q <= 1.
double Quantile(std::span<const double> sorted, double q);

struct LoadSummary {
  int64_t completed = 0, failed = 0;
  int64_t short_answers = 0;  // completed with fewer tokens than asked for
  int64_t prompt_tokens = 0, output_tokens = 0;
  std::optional<int64_t> cached_tokens;  // of prompts; nothing: the server does not say
  double duration_s = 0;                 // from the first request's sending to the last one's end
  std::optional<int64_t> good;
  std::optional<DraftCounts> drafts;  // that the server counted meanwhile; its caller fills it in
  Distribution ttft_ms, tpot_ms, itl_ms, e2el_ms;
  std::vector<std::string> errors;  // the first few, each once

  double PerSecond(int64_t count) const;
  double CachedShare() const;  // of prompt_tokens
};
// Failed requests count as such, and in the duration.
LoadSummary Summarize(std::span<const RequestRecord> records, const ServiceLevel& level);

boost::json::object ToJson(const LoadSummary& summary);
std::string ToTable(const LoadSummary& summary);

}  // namespace fathom
