// What a thread has of the heap.
#pragma once

#include <cstdint>

namespace fathom {

// Bytes that this thread took with `new`, as malloc rounds them, less those that it gave back; not
// those with an alignment of their own. What another thread gives back stays in this one's count.
int64_t ThreadBytes();
// The most that it has been since this was called last.
int64_t ThreadPeak();

}  // namespace fathom
