#include "server/process_metrics.h"

#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>

namespace fathom {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

prometheus::Gauge& AddGauge(prometheus::Registry& registry, const char* name, const char* help) {
  prometheus::Gauge& gauge =
      prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
  gauge.Set(kUnknown);
  return gauge;
}

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double SecondsOn(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// When the process was started, in Unix time: /proc/self/stat has it in ticks since the machine's
// start, as its 20th field behind the program's name.
double StartTime() {
  std::ifstream file("/proc/self/stat");
  file.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  std::string passed;
  for (int i = 0; i < 19; ++i) file >> passed;
  double ticks = 0;
  if (!(file >> ticks)) return kUnknown;
  const double age = SecondsOn(CLOCK_BOOTTIME) - ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  return SecondsOn(CLOCK_REALTIME) - age;
}

double CountOpenFiles() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (error) return kUnknown;
  return static_cast<double>(std::distance(begin(files), end(files)) - 1);  // but the folder's own
}

}  // namespace

ProcessMetrics::ProcessMetrics(prometheus::Registry& registry)
    : cpu_seconds_(prometheus::BuildCounter()
                       .Name("process_cpu_seconds_total")
                       .Help("Time of processors, the system's for this process among it.")
                       .Register(registry)
                       .Add({})),
      resident_(AddGauge(registry, "process_resident_memory_bytes", "Memory that it has.")),
      virtual_(AddGauge(registry, "process_virtual_memory_bytes", "Memory that it may address.")),
      open_files_(AddGauge(registry, "process_open_fds", "File descriptors that are open.")),
      most_files_(AddGauge(registry, "process_max_fds", "File descriptors that may be open.")) {
  AddGauge(registry, "process_start_time_seconds", "When it was started, in Unix time.")
      .Set(StartTime());
}

void ProcessMetrics::Update() {
  std::lock_guard lock(mutex_);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const double cpu_seconds = SecondsOf(used.ru_utime) + SecondsOf(used.ru_stime);
  if (cpu_seconds > cpu_seconds_.Value())
    cpu_seconds_.Increment(cpu_seconds - cpu_seconds_.Value());
  double pages = 0, resident_pages = 0;
  if (std::ifstream("/proc/self/statm") >> pages >> resident_pages) {
    const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
    virtual_.Set(pages * page);
    resident_.Set(resident_pages * page);
  }
  open_files_.Set(CountOpenFiles());
  rlimit most{};
  getrlimit(RLIMIT_NOFILE, &most);
  most_files_.Set(static_cast<double>(most.rlim_cur));
}

}  // namespace fathom
