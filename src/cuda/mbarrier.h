// The mbarrier of Hopper: a barrier object in shared memory on which threads arrive and the copy
// engine (tma.h) counts bytes. PTX ISA 9.0, "mbarrier". For sm_90 and up.
#pragma once

#include <cstdint>

namespace fathom {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A phase completes when `count` arrivals and all expected bytes are in; the next then begins.
// A wait names the parity of the phase that it waits for: 0 for the first, then 1, 0, ... Waiting
// for parity 1 on a fresh barrier returns at once: how a producer finds its first buffers empty.
class Mbarrier {
 public:
  // One thread; then FenceMbarrierInit (fence.h) and a barrier of all who use it.
  __device__ void Init(uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(&word_)), "r"(count)
                 : "memory");
  }

  __device__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(&word_))
                 : "memory");
  }

  // An arrival at the same place of block `rank` of the cluster. It does not release, which would
  // fence the whole GPU: what this thread has written may not be seen there.
  __device__ void ArriveAt(uint32_t rank) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(SharedAddress(&word_)),
        "r"(rank)
        : "memory");
  }

  // One arrival, which also adds `bytes` to what the phase waits for.
  __device__ void ArriveExpect(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(&word_)),
        "r"(bytes)
        : "memory");
  }

  // An arrival once the copies (cp.async) that this thread has asked for are there. For sm_80 and
  // up.
  __device__ void ArriveAfterCopies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(&word_))
                 : "memory");
  }

  // Whether the phase of this parity has completed; does not wait.
  __device__ bool Test(uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(SharedAddress(&word_)), "r"(parity)
        : "memory");
    return done != 0;
  }

  // Waits a bounded time; true once the phase of this parity has completed.
  __device__ bool TryWait(uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(SharedAddress(&word_)), "r"(parity)
        : "memory");
    return done != 0;
  }

  __device__ void Wait(uint32_t parity) {
    while (!TryWait(parity)) {
    }
  }

  __device__ uint32_t address() const { return SharedAddress(&word_); }

 private:
  uint64_t word_;
};

// Which buffer of a ring comes next, and the parity of its phase.
struct Ring {
  int32_t buffers;
  int32_t index = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if (++index == buffers) {
      index = 0;
      parity ^= 1;
    }
  }
};
// The same where their number is known when it is compiled.
template <int kBuffers>
struct RingPosition {
  uint32_t index = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++index == kBuffers) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace fathom
