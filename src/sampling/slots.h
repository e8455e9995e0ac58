// The device-resident state of running requests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "ops/ops.h"
#include "sampling/params.h"
#include "tensor/device.h"

namespace fathom {

struct SlotsCapacity {
  int64_t slots = 0;
  int64_t vocab = 0;
  int64_t max_pages = 0;  // of one request
};

class Slots {
 public:
  Slots(SlotsCapacity capacity, Device& device);

  const SlotState& state() const { return state_; }

  // A request enters: nothing is cached for it yet. `generated` are tokens sampled before a
  // preemption; `banned` are not sampled while fewer than min_tokens are generated.
  // REQUIRES: params within the bounds of params.h, ids in the vocabulary.
  struct Entry {
    const SamplingParams& params;
    std::span<const TokenId> banned;
    int32_t min_tokens = 0;
    std::span<const TokenId> prompt, generated;
  };
  void Open(SlotId slot, const Entry& entry);

  // Entries [first, first + pages) of the slot's page table.
  void SetPages(SlotId slot, int32_t first, std::span<const PageId> pages);

 private:
  template <class T>
  void Set(const TensorView& per_slot, SlotId slot, T value);

  SlotsCapacity capacity_;
  Device& device_;
  std::unique_ptr<DeviceMemory> memory_;
  SlotState state_;
};

}  // namespace fathom
