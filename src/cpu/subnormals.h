// Subnormal numbers as zeros, for instructions that always take them so.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fathom {

// If `on`, this thread's vector arithmetic reads them as zeros, and gives zeros for them, while it
// lives.
class SubnormalsAsZeros {
 public:
  explicit SubnormalsAsZeros(bool on) : on_(on) {
#if defined(__x86_64__)
    constexpr unsigned kDenormalsAreZeros = 1u << 6, kFlushToZero = 1u << 15;
    if (!on_) return;
    before_ = _mm_getcsr();
    _mm_setcsr(before_ | kDenormalsAreZeros | kFlushToZero);
#endif
  }
  ~SubnormalsAsZeros() {
#if defined(__x86_64__)
    if (on_) _mm_setcsr(before_);
#endif
  }
  SubnormalsAsZeros(const SubnormalsAsZeros&) = delete;
  SubnormalsAsZeros& operator=(const SubnormalsAsZeros&) = delete;

 private:
  bool on_;
  unsigned before_ = 0;
};

}  // namespace fathom
