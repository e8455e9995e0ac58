// Writing for somebody who may have stopped reading.
#pragma once

#include <chrono>
#include <string_view>

namespace fathom {

// Whether all of `text` was written by `until`: a pipe that is full is waited for no longer. False
// also if nobody reads any more; where SIGPIPE is not ignored, that ends the process.
bool WriteUntil(int fd, std::string_view text, std::chrono::steady_clock::time_point until);

}  // namespace fathom
