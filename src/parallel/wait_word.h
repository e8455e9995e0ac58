// What a kernel tells the host before it waits for other ranks: a word of 64 bits, written at once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "parallel/communicator.h"

namespace fathom {

enum class MeetingOp : uint64_t { kNone, kAllReduceNorm, kAllGather, kDispatch, kCombine };

// The word but for the meeting's number, which the kernel counts: an argument of its launch, which
// a recorded step keeps. Op (3 bits), tokens and width (20 each, at most), number (21).
constexpr uint64_t WaitBits(MeetingOp op, int64_t tokens, int64_t width) {
  constexpr int64_t kMost = (1 << 20) - 1;
  return static_cast<uint64_t>(op) << 61 | static_cast<uint64_t>(std::min(tokens, kMost)) << 41 |
         static_cast<uint64_t>(std::min(width, kMost)) << 21;
}

inline Meeting MeetingOf(uint64_t word) {
  constexpr std::array<std::string_view, 8> kNames = {"", "all_reduce_norm", "all_gather",
                                                      "dispatch", "combine"};
  constexpr uint64_t kSize = (1 << 20) - 1;
  return {.op = kNames[word >> 61],
          .tokens = static_cast<int64_t>(word >> 41 & kSize),
          .width = static_cast<int64_t>(word >> 21 & kSize),
          .number = static_cast<uint32_t>(word % Meeting::kNumbers)};
}

}  // namespace fathom
