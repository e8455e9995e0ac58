// Counts the calls of CUDA's two interfaces that this process makes, through CUPTI.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace fathom {

// One at a time. Runtime calls count under their own name (cudaMalloc) and under those of the
// driver's functions that they call (cuMemAlloc_v2).
class CudaCalls {
 public:
  CudaCalls();
  ~CudaCalls();
  CudaCalls(const CudaCalls&) = delete;
  CudaCalls& operator=(const CudaCalls&) = delete;

  // Why calls cannot be counted here, and what to do about it; empty if they can.
  const std::string& missing() const { return missing_; }

  // THREAD: any; calls of all threads count.
  void Start();  // from nothing
  void Stop();

  std::map<std::string, int64_t> counts() const;  // by name
  int64_t Sum(const std::function<bool(std::string_view)>& wanted) const;

 private:
  std::string missing_;
};

}  // namespace fathom
