#include "engine/memory_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/printable.h"

namespace fathom {
namespace {
double Gib(double bytes) {
  return bytes / (1 << 30);
}

int64_t RequestPages(const MemoryNeeds& needs) {
  return (needs.max_model_len + kPageTokens - 1) / kPageTokens;
}

// The most that have a use: with every request as long as it may be.
int64_t PagesOfUse(const MemoryNeeds& needs) {
  if (needs.prefix_caching && needs.kv_cache_bytes > 0) return INT32_MAX;
  return RequestPages(needs) * needs.max_num_seqs;
}

std::string TextOf(const MemoryNeed& need) {
  if (!need.bytes) return need.name + " not yet measured";
  return fmt::format("{} {:.2f} GiB{}", need.name, Gib(static_cast<double>(*need.bytes)),
                     need.remark.empty() ? "" : fmt::format(" ({})", need.remark));
}

// "--a, --b or --c": what lowers the largest items first, then what lowers a cache whose size was
// not given.
std::string FlagsThatLower(const MemoryNeeds& needs) {
  std::vector<MemoryNeed> items = needs.items;
  if (needs.kv_cache_bytes > 0) {
    items.push_back({.name = "KV cache",
                     .bytes = static_cast<size_t>(needs.kv_cache_bytes),
                     .lowered_by = "--kv-cache-memory-bytes"});
  }
  std::stable_sort(items.begin(), items.end(), [](const MemoryNeed& a, const MemoryNeed& b) {
    return a.bytes.value_or(0) > b.bytes.value_or(0);
  });
  for (const char* flag : {"--max-model-len", "--kv-cache-memory-bytes"}) {
    items.push_back({.name = "KV cache", .lowered_by = flag});
  }
  std::vector<std::string> flags;
  for (const MemoryNeed& item : items) {
    const bool known = std::find(flags.begin(), flags.end(), item.lowered_by) != flags.end();
    if (!item.lowered_by.empty() && !known) flags.push_back(item.lowered_by);
  }
  const std::string last = flags.back();
  flags.pop_back();
  return fmt::format("{} or {}", fmt::join(flags, ", "), last);
}

}  // namespace

int64_t MemoryNeeds::item_bytes() const {
  size_t bytes = 0;
  for (const MemoryNeed& item : items) bytes += item.bytes.value_or(0);
  return static_cast<int64_t>(bytes);
}

// The cache stands second: behind the weights.
std::string MemoryPlan::ToString() const {
  std::vector<std::string> parts;
  for (const MemoryNeed& item : needs.items) parts.push_back(TextOf(item));
  parts.insert(
      parts.begin() + (parts.empty() ? 0 : 1),
      fmt::format("KV cache {:.2f} GiB ({} tokens{}, {} per GiB)",
                  Gib(static_cast<double>(kv_cache_bytes())), num_pages * kPageTokens,
                  num_pages < PagesOfUse(needs)
                      ? ""
                      : fmt::format(": {} x {}{}", needs.max_num_seqs, needs.max_model_len,
                                    needs.prefix_caching ? "" : ", more could not be used"),
                  (int64_t{1} << 30) / needs.page_bytes * kPageTokens));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string MemoryPlan::UnusedCache() const {
  if (needs.kv_cache_bytes < kv_cache_bytes() + needs.page_bytes || num_pages < PagesOfUse(needs)) {
    return "";
  }
  return fmt::format(
      "--kv-cache-memory-bytes {}: the KV cache takes {} of them, for {} of at most {}, and more "
      "would have no use; raise --max-num-seqs or --max-model-len, or lower it",
      needs.kv_cache_bytes, kv_cache_bytes(), Counted(needs.max_num_seqs, "request"),
      Counted(needs.max_model_len, "token"));
}

Result<MemoryPlan> PlanMemory(const MemoryNeeds& needs) {
  const int64_t request_pages = RequestPages(needs);
  int64_t kv_cache_bytes = needs.kv_cache_bytes > 0 ? needs.kv_cache_bytes : kDefaultKvCacheBytes;
  if (needs.kv_cache_bytes == 0 && needs.memory_is_ours) {
    kv_cache_bytes = std::max(kv_cache_bytes, needs.memory_bytes / 10 * 9 - needs.item_bytes());
  }
  const int64_t affordable = kv_cache_bytes / needs.page_bytes;
  MemoryPlan plan{.needs = needs,
                  .num_pages = std::min<int64_t>({PagesOfUse(needs), affordable, INT32_MAX})};
  // Where all else is too much already, no size of the cache would help.
  const bool hopeless = needs.memory_bytes > 0 && needs.item_bytes() > needs.memory_bytes;
  if (plan.num_pages < request_pages && !hopeless) {
    const std::string shorter =
        plan.num_pages == 0 ? ""
                            : fmt::format("lower that to {}, or ", plan.num_pages * kPageTokens);
    return ResourceExhausted(
        "a KV cache of {:.2f} GiB holds {} tokens, fewer than one request of --max-model-len {}: "
        "{}give --kv-cache-memory-bytes {}",
        Gib(static_cast<double>(plan.kv_cache_bytes())), plan.num_pages * kPageTokens,
        needs.max_model_len, shorter, request_pages * needs.page_bytes);
  }
  if (needs.memory_bytes > 0 && plan.total_bytes() > needs.memory_bytes) {
    return ResourceExhausted(
        "{:.1f} GiB are needed and {:.1f} can be had: {}. Lower {}, or take a smaller model",
        Gib(static_cast<double>(plan.total_bytes())), Gib(static_cast<double>(needs.memory_bytes)),
        plan.ToString(), FlagsThatLower(needs));
  }
  return plan;
}

}  // namespace fathom
