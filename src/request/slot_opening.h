// A request enters a slot: the one message that sets the slot's device-resident state.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "request/params.h"

namespace fathom {

struct SlotOpening {
  SlotId slot{};
  RequestId request{};
  std::shared_ptr<const RequestParams> params;  // never null
  std::vector<TokenId> generated;               // before a preemption
  int32_t length = 0;        // positions whose latents are in the pages already; the first row's
                             // begin
  int32_t final_length = 0;  // prompt and generated tokens at which it ends at the latest

  friend bool operator==(const SlotOpening& a, const SlotOpening& b) {
    return a.slot == b.slot && a.request == b.request && *a.params == *b.params &&
           a.generated == b.generated && a.length == b.length && a.final_length == b.final_length;
  }
};

}  // namespace fathom
