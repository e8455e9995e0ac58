#include "draft_counts.h"

#include <charconv>
#include <cmath>

namespace fathom {
namespace {

// "name{labels} value" or "name value"; a timestamp may follow. Nothing for other lines.
std::optional<double> ValueOf(std::string_view line, std::string_view name) {
  if (!line.starts_with(name)) return std::nullopt;
  line.remove_prefix(name.size());
  if (line.starts_with('{')) {
    const size_t end = line.rfind('}');
    if (end == std::string_view::npos) return std::nullopt;
    line.remove_prefix(end + 1);
  }
  if (!line.starts_with(' ')) return std::nullopt;  // another metric's name goes on
  line.remove_prefix(1);
  double value = 0;
  const auto read = std::from_chars(line.data(), line.data() + line.size(), value);
  if (read.ec != std::errc() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<double> SumOf(std::string_view metrics, std::string_view name) {
  std::optional<double> sum;
  while (!metrics.empty()) {
    const size_t end = metrics.find('\n');
    const std::optional<double> value = ValueOf(metrics.substr(0, end), name);
    if (value) sum = sum.value_or(0) + *value;
    metrics.remove_prefix(end == std::string_view::npos ? metrics.size() : end + 1);
  }
  return sum;
}

}  // namespace

std::optional<DraftCounts> ReadDraftCounts(std::string_view metrics) {
  const auto decodes = SumOf(metrics, "vllm:spec_decode_num_drafts_total");
  const auto proposed = SumOf(metrics, "vllm:spec_decode_num_draft_tokens_total");
  const auto accepted = SumOf(metrics, "vllm:spec_decode_num_accepted_tokens_total");
  if (!decodes || !proposed || !accepted) return std::nullopt;
  return DraftCounts{*decodes, *proposed, *accepted};
}

}  // namespace fathom
