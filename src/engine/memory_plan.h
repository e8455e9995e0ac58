// Where a device's memory goes, decided once at start-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace fathom {

// Something beside the KV cache that memory is needed for.
struct MemoryNeed {
  std::string name;             // in the plan: "activations"
  std::optional<size_t> bytes;  // nothing: not yet measured
  std::string lowered_by;       // a flag; empty: there is none
  std::string remark;           // in the plan, behind the bytes; empty: there is none
};

struct MemoryNeeds {
  std::vector<MemoryNeed> items;
  int64_t page_bytes = 0;  // of one page of the KV cache over all layers
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  int64_t kv_cache_bytes = 0;  // 0: enough for max_num_seqs requests of max_model_len, but at most
                               // kDefaultKvCacheBytes, or what is left where memory_is_ours
  // Pages outlive their requests: all kv_cache_bytes that were asked for are of use.
  bool prefix_caching = false;
  int64_t memory_bytes = 0;  // that can be had; 0: unknown
  // Of memory_bytes: the device has nothing else to do, so that the cache may have what is left but
  // a tenth.
  bool memory_is_ours = false;
  int64_t recorded_steps = 0;  // that start-up will record

  int64_t item_bytes() const;  // of all items that are measured
};

inline constexpr int64_t kDefaultKvCacheBytes = int64_t{4} << 30;

struct MemoryPlan {
  MemoryNeeds needs;
  int64_t num_pages = 0;

  int64_t kv_cache_bytes() const { return num_pages * needs.page_bytes; }
  int64_t total_bytes() const { return kv_cache_bytes() + needs.item_bytes(); }
  // "weights 0.04 GiB, KV cache 1.05 GiB (131072 tokens, 124830 per GiB), ..."
  std::string ToString() const;
  // A sentence if kv_cache_bytes were asked for and some of them have no use; otherwise empty.
  std::string UnusedCache() const;
};

// Once before a model is loaded, to refuse early what cannot fit, and again with what it measured.
// kResourceExhausted, naming what to lower, when the cache could not hold one request of
// max_model_len, or when all of it is more than can be had.
Result<MemoryPlan> PlanMemory(const MemoryNeeds& needs);

}  // namespace fathom
