// Tells the service manager how the process is, as systemd has it told (sd_notify(3)).
#pragma once

#include <string_view>

namespace fathom {

// "READY=1", or "STATUS=" and a line for people. Nothing where NOTIFY_SOCKET names nobody.
void NotifyService(std::string_view state);

}  // namespace fathom
