// What the process takes of the machine, under the names that Prometheus' own clients use.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <mutex>

namespace fathom {

// THREAD: any.
class ProcessMetrics {
 public:
  // `registry` owns what is measured, and outlives this.
  explicit ProcessMetrics(prometheus::Registry& registry);
  // Reads it anew. What the system does not tell (/proc is not there) stays NaN.
  void Update();

 private:
  std::mutex mutex_;  // of two updates
  prometheus::Counter& cpu_seconds_;
  prometheus::Gauge &resident_, &virtual_, &open_files_, &most_files_;
};

}  // namespace fathom
