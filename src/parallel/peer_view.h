// What kernels see of the ranks that are GPUs: memory that each of them writes for the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel/layout.h"

namespace fathom {

inline constexpr int kMostGpuRanks = 32;                  // of a group
inline constexpr size_t kWindowBytes = size_t{16} << 20;  // what a round of a large message brings

// Of a rank that its peers reach over NVLink: mapped into all of them.
struct PeerExchange {
  static constexpr int kMaxRanks = 8;
  static constexpr size_t kPacketBytes = size_t{1} << 20;  // of small messages' numbers
  // So many, from one rank to all others, take as long in packets as in rounds of a large message:
  // 32 tokens of V3 of four H200s (docs/ranks.md).
  static constexpr size_t kMostInPackets = 1'400'000;

  static constexpr bool TakesPackets(size_t bytes, int ranks) {
    return bytes <= kPacketBytes && bytes * static_cast<size_t>(ranks - 1) <= kMostInPackets;
  }

  uint32_t barrier_flags[kMaxRanks][32];  // of each peer, the epoch in which it is; a line each
  // Of small messages: eight bytes of numbers in sixteen, each half with its epoch; by the epoch's
  // parity, from each peer.
  uint32_t packets[2][kMaxRanks][2 * kPacketBytes / sizeof(uint32_t)];
  // Of large ones, by the parity of the barrier that they are ahead of.
  uint32_t windows[2][kWindowBytes / sizeof(uint32_t)];
};

// Of one rank alone. Epochs count on in replayed graphs.
struct PeerCounters {
  uint32_t barrier = 0;      // epochs that are over; 0 for ever where NCCL moves windows
  uint32_t packets = 0;      // likewise; where NCCL moves windows, meetings
  uint32_t blocks_here = 0;  // of the kernel that runs
};

// What a rank's device has of its memory taken, for each group that the rank is in, if all ranks
// are on one host.
inline size_t PeerBytes(const ParallelLayout& layout) {
  const size_t stages = layout.pipeline == 1 ? 0 : layout.pipeline == 2 ? 2 : 3;  // at most
  const size_t groups = (layout.tensor > 1 ? 1 : 0) + (layout.exchanges_tokens() ? 1 : 0) + stages;
  return groups * (sizeof(PeerExchange) + sizeof(PeerCounters));
}

// The same of a group of so many over several hosts: what goes to each rank, and what comes. What
// NCCL takes beside it is its own.
inline size_t WindowsBytes(int size) {
  return static_cast<size_t>(size + 1) * kWindowBytes + sizeof(PeerCounters);
}

struct PeerView {
  int rank = 0, size = 1;
  // What is written for a rank ahead of the barrier that ends epoch e lies in windows[rank][e & 1].
  uint32_t* windows[kMostGpuRanks][2] = {};
  PeerCounters* counters = nullptr;
  uint64_t* waits_for = nullptr;  // in the host's memory: MeetingOf(it), of this rank
  // Of peers alone:
  PeerExchange* mine = nullptr;
  PeerExchange* exchange[PeerExchange::kMaxRanks] = {};  // of all ranks
  const uint32_t* abort = nullptr;  // in the host's memory: what waits gives up once it is not 0
};

}  // namespace fathom
