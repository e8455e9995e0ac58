#include "cuda/op_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "cuda/gpu.h"

namespace fathom {

OpTimes::~OpTimes() {
  double all = 0;
  for (const auto& [what, us] : us_) all += std::accumulate(us.begin(), us.end(), 0.0);
  fmt::print(stderr, "{:<18} {:>9} {:>12} {:>10} {:>7}\n", "", "calls", "ms", "median us", "share");
  for (auto& [what, us] : us_) {
    const double sum = std::accumulate(us.begin(), us.end(), 0.0);
    std::nth_element(us.begin(), us.begin() + us.size() / 2, us.end());
    fmt::print(stderr, "{:<18} {:>9} {:>12.3f} {:>10.2f} {:>6.1f}%\n", what, us.size(), sum * 1e-3,
               us[us.size() / 2], 100 * sum / all);
  }
}

void OpTimes::After(const char* what, cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    Gpu::OfThread().Check(cudaEventCreate(&event));
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  Gpu::OfThread().Check(cudaEventRecord(event, stream));
  marks_.push_back({what, event});
}

void OpTimes::Collect() {
  for (size_t i = 1; i < marks_.size(); ++i) {
    float ms = 0;
    Gpu::OfThread().Check(cudaEventElapsedTime(&ms, marks_[i - 1].event, marks_[i].event));
    us_[marks_[i].what].push_back(1e3 * ms);
  }
  for (const Mark& mark : marks_) spare_.push_back(mark.event);
  marks_.clear();
}

}  // namespace fathom
