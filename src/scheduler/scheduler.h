// Pure policy: requests and pages in, step plans out. No tensors, no device, no threads.
#pragma once

#include <cstdint>

namespace fathom {

struct SchedulerOptions {
  int32_t max_num_seqs = 32;              // slots
  int32_t max_num_batched_tokens = 1024;  // token budget of a step; at least prefill_chunk
  int32_t prefill_chunk = 512;  // prefill is cut at absolute multiples of this many positions
  int32_t num_pages = 0;
  int32_t max_model_len = 0;  // prompt and generated tokens
  int32_t depth = 2;          // steps planned ahead of results
};

}  // namespace fathom
