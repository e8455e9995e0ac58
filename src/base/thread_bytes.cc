#include "base/thread_bytes.h"

#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace {

thread_local int64_t held = 0, peak = 0;

}  // namespace

void* operator new(size_t size) {
  for (;;) {
    if (void* const p = malloc(size)) {
      held += static_cast<int64_t>(malloc_usable_size(p));
      peak = std::max(peak, held);
      return p;
    }
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void operator delete(void* p) noexcept {
  held -= static_cast<int64_t>(malloc_usable_size(p));  // of null: 0
  free(p);
}

// The library's own would do the same; those of sanitizers would not.
void* operator new[](size_t size) {
  return operator new(size);
}
void* operator new(size_t size, const std::nothrow_t&) noexcept try {
  return operator new(size);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return operator new(size, std::nothrow);
}
void operator delete[](void* p) noexcept {
  operator delete(p);
}
void operator delete(void* p, size_t) noexcept {
  operator delete(p);
}
void operator delete[](void* p, size_t) noexcept {
  operator delete(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
  operator delete(p);
}
void operator delete[](void* p, const std::nothrow_t&) noexcept {
  operator delete(p);
}

namespace fathom {

int64_t ThreadBytes() {
  return held;
}

int64_t ThreadPeak() {
  return std::exchange(peak, held);
}

}  // namespace fathom
