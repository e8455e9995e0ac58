// What a thread is at work on, which a failing CHECK tells: device calls report what others did.
#pragma once

#include <cstdint>
#include <string>

namespace fathom {

struct Activity {
  int64_t step = -1;  // of the step loop; -1: none yet
  // Names the op, and with its arguments their shape; null: none has run.
  std::string (*describe)(const void* arguments) = nullptr;
  const void* arguments = nullptr;  // null: the op was the last one, and is over
};

// Of this thread, which drives one device at a time: what it does is its own, no device's. Kept in
// every build: a few stores an op.
inline thread_local constinit Activity current_activity;

// " (in step 7, op linear of BF16 [8, 2048])", " (in step 7, after op linear)" or "".
std::string DescribeActivity();

}  // namespace fathom
