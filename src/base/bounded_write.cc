#include "base/bounded_write.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace fathom {

bool WriteUntil(int fd, std::string_view text, std::chrono::steady_clock::time_point until) {
  using namespace std::chrono;  // NOLINT: of this function only
  while (!text.empty()) {
    const auto left = duration_cast<milliseconds>(until - steady_clock::now()).count();
    pollfd wanted{.fd = fd, .events = POLLOUT, .revents = 0};
    const int ready = poll(&wanted, 1, static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || (wanted.revents & POLLOUT) == 0) return false;
    // A pipe that poll() calls writable takes so much without blocking.
    const ssize_t written = write(fd, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace fathom
