#include "cuda/op_times.h"

#include <fmt/format.h>

#include <cstdio>

#include "cuda/check.h"

namespace fathom {

OpTimes::~OpTimes() {
  double all = 0;
  for (const auto& [op, total] : totals_) all += total.us;
  fmt::print(stderr, "{:<18} {:>9} {:>12} {:>9} {:>7}\n", "op", "calls", "ms", "us each", "share");
  for (const auto& [op, total] : totals_) {
    fmt::print(stderr, "{:<18} {:>9} {:>12.3f} {:>9.2f} {:>6.1f}%\n", op, total.calls,
               total.us * 1e-3, total.us / static_cast<double>(total.calls), 100 * total.us / all);
  }
}

void OpTimes::After(const char* op, cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    CUDA_CHECK(cudaEventCreate(&event));
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  CUDA_CHECK(cudaEventRecord(event, stream));
  marks_.push_back({op, event});
}

void OpTimes::Collect() {
  for (size_t i = 1; i < marks_.size(); ++i) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, marks_[i - 1].event, marks_[i].event));
    Total& total = totals_[marks_[i].op];
    ++total.calls;
    total.us += 1e3 * ms;
  }
  for (const Mark& mark : marks_) spare_.push_back(mark.event);
  marks_.clear();
}

}  // namespace fathom
