#include "service_notice.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace fathom {

bool HasServiceManager() {
  const char* given = std::getenv("NOTIFY_SOCKET");
  return given != nullptr && *given != '\0';
}

void NotifyService(std::string_view state) {
  if (!HasServiceManager()) return;
  const std::string_view path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    LOG_WARNING("NOTIFY_SOCKET is longer than {} bytes: the service manager is not told",
                sizeof address.sun_path - 1);
    return;
  }
  path.copy(address.sun_path, path.size());
  if (path.front() == '@') address.sun_path[0] = '\0';  // an abstract name
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const int handle = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const ssize_t sent = sendto(handle, state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                              reinterpret_cast<const sockaddr*>(&address), size);
  if (sent < 0) LOG_WARNING("the service manager was not told {}: {}", state, std::strerror(errno));
  if (handle >= 0) close(handle);
}

}  // namespace fathom
