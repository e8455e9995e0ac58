#include "base/thread_bytes.h"

#include <malloc.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t held = 0;

}  // namespace

// The other forms, of arrays and with sizes, are the library's, which calls these.
void* operator new(size_t size) {
  for (;;) {
    if (void* const p = malloc(size)) {
      held += static_cast<int64_t>(malloc_usable_size(p));
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

namespace fathom {

int64_t ThreadBytes() {
  return held;
}

}  // namespace fathom
