#include "engine/memory_plan.h"

#include <fmt/format.h>

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

int64_t BytesBesideCache(const MemoryNeeds& needs) {
  const size_t reserve = needs.memory_is_ours ? size_t{kGpuReserveBytes} : 0;
  return static_cast<int64_t>(needs.weight_bytes + needs.activation_bytes + needs.workspace_bytes +
                              needs.state_bytes + reserve);
}

// With every request as long as it may be.
int64_t PagesInUse(const MemoryNeeds& needs) {
  return RequestPages(needs) * needs.max_num_seqs;
}

}  // namespace

int64_t MemoryPlan::total_bytes() const {
  return kv_cache_bytes() + BytesBesideCache(needs);
}

std::string MemoryPlan::ToString() const {
  return fmt::format(
      "weights {:.2f} GiB, KV cache {:.2f} GiB ({} tokens{}, {} per GiB), activations {:.2f} GiB, "
      "work space {}, request state {:.2f} GiB{}",
      Gib(static_cast<double>(needs.weight_bytes)), Gib(static_cast<double>(kv_cache_bytes())),
      num_pages * kPageTokens,
      num_pages < PagesInUse(needs) ? ""
                                    : fmt::format(": {} x {}, more could not be used",
                                                  needs.max_num_seqs, needs.max_model_len),
      (int64_t{1} << 30) / needs.page_bytes * kPageTokens,
      Gib(static_cast<double>(needs.activation_bytes)),
      needs.workspace_bytes == 0
          ? "not yet measured"
          : fmt::format("{:.2f} GiB", Gib(static_cast<double>(needs.workspace_bytes))),
      Gib(static_cast<double>(needs.state_bytes)),
      needs.memory_is_ours
          ? fmt::format(", kernels and recorded steps {:.2f} GiB", Gib(kGpuReserveBytes))
          : "");
}

std::string MemoryPlan::UnusedCache() const {
  if (needs.kv_cache_bytes < kv_cache_bytes() + needs.page_bytes || num_pages < PagesInUse(needs)) {
    return "";
  }
  return fmt::format(
      "--kv-cache-memory-bytes {}: the KV cache takes {} of them, for {} of at most {}, and more "
      "would have no use; raise --max-num-seqs or --max-model-len, or lower it",
      needs.kv_cache_bytes, kv_cache_bytes(), Counted(needs.max_num_seqs, "request"),
      Counted(needs.max_model_len, "token"));
}

size_t StateBytes(int64_t vocab, int64_t max_num_seqs) {
  constexpr int64_t kCounts = 4, kInPrompt = 1, kRawLogits = 4, kAdjustedLogits = 4;
  return static_cast<size_t>(max_num_seqs * vocab *
                             (kCounts + kInPrompt + kRawLogits + kAdjustedLogits));
}

Result<MemoryPlan> PlanMemory(const MemoryNeeds& needs) {
  const int64_t request_pages = RequestPages(needs);
  int64_t kv_cache_bytes = needs.kv_cache_bytes > 0 ? needs.kv_cache_bytes : kDefaultKvCacheBytes;
  if (needs.kv_cache_bytes == 0 && needs.memory_is_ours) {
    kv_cache_bytes =
        std::max(kv_cache_bytes, needs.memory_bytes / 10 * 9 - BytesBesideCache(needs));
  }
  const int64_t affordable = kv_cache_bytes / needs.page_bytes;
  MemoryPlan plan{.needs = needs,
                  .num_pages = std::min<int64_t>({PagesInUse(needs), affordable, INT32_MAX})};
  if (plan.num_pages < request_pages) {
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
        "{:.1f} GiB are needed and {:.1f} can be had: {}. Lower --max-num-seqs, --max-model-len, "
        "--max-num-batched-tokens or --kv-cache-memory-bytes, or take a smaller model",
        Gib(static_cast<double>(plan.total_bytes())), Gib(static_cast<double>(needs.memory_bytes)),
        plan.ToString());
  }
  return plan;
}

}  // namespace fathom
