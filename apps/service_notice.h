// Tells the service manager how the process is, as systemd has it told (sd_notify(3)).
#pragma once

#include <string_view>

namespace fathom {

// Whether NOTIFY_SOCKET names one.
bool HasServiceManager();

// "READY=1", or "STATUS=" and a line for people. Nothing where there is none.
void NotifyService(std::string_view state);

}  // namespace fathom
