// The device-resident state of running requests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "ops/ops.h"
#include "request/slot_opening.h"
#include "tensor/buffer.h"
#include "tensor/device.h"

namespace fathom {

struct SlotsCapacity {
  int64_t slots = 0;
  int64_t vocab = 0;
  int64_t max_pages = 0;   // of one request
  int64_t max_drafts = 0;  // of one request
  int64_t max_text = 0;    // tokens of one request that are kept as text; 0: none
};

class Slots {
 public:
  Slots(const SlotsCapacity& capacity, Device& device);

  const SlotState& state() const { return state_; }

  static size_t Bytes(const SlotsCapacity& capacity);

  // REQUIRES: params within the bounds of request/params.h, ids in the vocabulary.
  void Open(const SlotOpening& opening);

  // From now on nothing is sampled but what masks allow (base/token_mask.h): the first one what
  // follows the last token, the next ones, as far as there are any, what follows each draft.
  void SetMasks(SlotId slot, std::span<const uint32_t> words);

  // Entries [first, first + pages) of the slot's page table.
  void SetPages(SlotId slot, int32_t first, std::span<const PageId> pages);

 private:
  template <class T>
  void Set(const TensorView& per_slot, SlotId slot, T value);

  static size_t LayOut(const SlotsCapacity& capacity, Arena arena, SlotState& state);

  SlotsCapacity capacity_;
  Device& device_;
  std::unique_ptr<DeviceMemory> memory_;
  SlotState state_;
};

}  // namespace fathom
