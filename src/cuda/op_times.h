// Where a GPU's time goes, op by op: for whoever looks for what to improve.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string>
#include <vector>

namespace fathom {

// Times from the end of one op to the end of the next, on one stream. Graphs are not looked into.
class OpTimes {
 public:
  ~OpTimes();  // prints a table to stderr

  void After(const char* op, cudaStream_t stream);
  // REQUIRES: the stream is synchronised.
  void Collect();

 private:
  struct Total {
    int64_t calls = 0;
    double us = 0;
  };
  struct Mark {
    const char* op;  // that ended here
    cudaEvent_t event;
  };
  std::vector<Mark> marks_;
  std::vector<cudaEvent_t> spare_;
  std::map<std::string, Total> totals_;
};

}  // namespace fathom
