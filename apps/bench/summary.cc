#include "summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/printable.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr size_t kMaxErrors = 5;

void AddError(const std::string& error, std::vector<std::string>& errors) {
  const bool known = std::find(errors.begin(), errors.end(), error) != errors.end();
  if (!known && errors.size() < kMaxErrors) errors.push_back(error);
}

struct Latencies {
  const char* key;
  const char* title;
  const Distribution& values;
};

std::vector<Latencies> LatenciesOf(const LoadSummary& s) {
  return {{"ttft", "time to first token", s.ttft_ms},
          {"tpot", "time per output token", s.tpot_ms},
          {"itl", "inter-token latency", s.itl_ms},
          {"e2el", "end to end", s.e2el_ms}};
}

}  // namespace

bool ServiceLevel::Holds(const RequestRecord& r) const {
  const auto within = [](const std::optional<double>& bound_ms, double seconds) {
    return !bound_ms || 1e3 * seconds <= *bound_ms;
  };
  return within(ttft_ms, r.ttft_s()) && within(e2el_ms, r.latency_s()) &&
         within(tpot_ms, r.output_tokens > 1 ? r.tpot_s() : 0);
}

double Quantile(std::span<const double> sorted, double q) {
  CHECK(!sorted.empty() && q >= 0 && q <= 1);
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - std::floor(at)) * (sorted[above] - sorted[below]);
}

Distribution DistributionOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {.mean = mean,
          .median = Quantile(values, 0.5),
          .deviation = std::sqrt(squares / n),
          .p99 = Quantile(values, 0.99)};
}

double LoadSummary::CachedShare() const {
  const auto cached = static_cast<double>(cached_tokens.value_or(0));
  return prompt_tokens > 0 ? cached / static_cast<double>(prompt_tokens) : 0;
}

double LoadSummary::PerSecond(int64_t count) const {
  return duration_s > 0 ? static_cast<double>(count) / duration_s : 0;
}

LoadSummary Summarize(std::span<const RequestRecord> records, const ServiceLevel& level) {
  LoadSummary summary;
  std::vector<double> ttft, tpot, itl, e2el;
  double begin = INFINITY, end = -INFINITY;
  int64_t good = 0;
  for (const RequestRecord& record : records) {
    begin = std::min(begin, record.sent_s);
    end = std::max(end, record.last_s);
    if (!record.ok()) {
      ++summary.failed;
      AddError(record.error, summary.errors);
      continue;
    }
    ++summary.completed;
    summary.short_answers += record.output_tokens < record.wanted_tokens;
    summary.prompt_tokens += record.prompt_tokens;
    summary.output_tokens += record.output_tokens;
    if (record.cached_tokens) {
      summary.cached_tokens = summary.cached_tokens.value_or(0) + *record.cached_tokens;
    }
    good += level.Holds(record);
    ttft.push_back(1e3 * record.ttft_s());
    e2el.push_back(1e3 * record.latency_s());
    if (record.output_tokens > 1) tpot.push_back(1e3 * record.tpot_s());
    for (const float gap : record.inter_token_s) itl.push_back(1e3 * static_cast<double>(gap));
  }
  if (!records.empty()) summary.duration_s = end - begin;
  if (level.any()) summary.good = good;
  summary.ttft_ms = DistributionOf(std::move(ttft));
  summary.tpot_ms = DistributionOf(std::move(tpot));
  summary.itl_ms = DistributionOf(std::move(itl));
  summary.e2el_ms = DistributionOf(std::move(e2el));
  return summary;
}

json::object ToJson(const LoadSummary& s) {
  json::object out = {{"completed", s.completed},
                      {"failed", s.failed},
                      {"short_answers", s.short_answers},
                      {"duration", s.duration_s},
                      {"total_input_tokens", s.prompt_tokens},
                      {"total_output_tokens", s.output_tokens},
                      {"request_throughput", s.PerSecond(s.completed)},
                      {"output_throughput", s.PerSecond(s.output_tokens)},
                      {"total_token_throughput", s.PerSecond(s.prompt_tokens + s.output_tokens)}};
  if (s.cached_tokens) {
    out["total_cached_tokens"] = *s.cached_tokens;
    out["cached_share"] = s.CachedShare();
  }
  if (s.good) out["request_goodput"] = s.PerSecond(*s.good);
  if (s.drafts && s.drafts->decodes > 0) {
    out["spec_decode_num_drafts"] = s.drafts->decodes;
    out["spec_decode_draft_tokens"] = s.drafts->proposed;
    out["spec_decode_accepted_tokens"] = s.drafts->accepted;
    out["spec_decode_acceptance_rate"] = 100 * s.drafts->AcceptedShare();  // in per cent, as vLLM's
    out["spec_decode_acceptance_length"] = s.drafts->MeanTokens();
  }
  for (const Latencies& l : LatenciesOf(s)) {
    out[fmt::format("mean_{}_ms", l.key)] = l.values.mean;
    out[fmt::format("median_{}_ms", l.key)] = l.values.median;
    out[fmt::format("std_{}_ms", l.key)] = l.values.deviation;
    out[fmt::format("p99_{}_ms", l.key)] = l.values.p99;
  }
  out["errors"] = json::array(s.errors.begin(), s.errors.end());
  return out;
}

std::string ToTable(const LoadSummary& s) {
  std::string out = fmt::format("{} in {:.2f} s, {} failed\n",
                                Counted(s.completed + s.failed, "request"), s.duration_s, s.failed);
  for (const std::string& error : s.errors) out += fmt::format("  failed: {}\n", error);
  if (s.short_answers > 0) {
    out += fmt::format("{} answers had fewer tokens than were asked for\n", s.short_answers);
  }
  out += fmt::format("\n{:<24}{:>12.2f}\n", "requests/s", s.PerSecond(s.completed));
  if (s.good) out += fmt::format("{:<24}{:>12.2f}\n", "good requests/s", s.PerSecond(*s.good));
  out += fmt::format("{:<24}{:>12.1f}  ({} in all)\n", "output tokens/s",
                     s.PerSecond(s.output_tokens), s.output_tokens);
  out += fmt::format("{:<24}{:>12.1f}  ({} of prompts)\n", "tokens/s",
                     s.PerSecond(s.prompt_tokens + s.output_tokens), s.prompt_tokens);
  if (s.cached_tokens) {
    out += fmt::format("{:<24}{:>10.1f} %  ({} cached)\n", "cached prompt tokens",
                       100 * s.CachedShare(), *s.cached_tokens);
  }
  if (s.drafts && s.drafts->decodes > 0) {
    out += fmt::format("{:<24}{:>10.1f} %  ({:.0f} of {:.0f})\n", "accepted drafts",
                       100 * s.drafts->AcceptedShare(), s.drafts->accepted, s.drafts->proposed);
    out += fmt::format("{:<24}{:>12.2f}  (of decodes with drafts)\n", "tokens a decode",
                       s.drafts->MeanTokens());
  }
  out += fmt::format("\n{:<24}{:>12}{:>12}{:>12}\n", "milliseconds", "mean", "median", "p99");
  for (const Latencies& l : LatenciesOf(s)) {
    out += fmt::format("{:<24}{:>12.2f}{:>12.2f}{:>12.2f}\n", l.title, l.values.mean,
                       l.values.median, l.values.p99);
  }
  return out;
}

}  // namespace fathom
