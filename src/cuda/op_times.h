// Where a GPU's time goes, op by op: for whoever looks for what to improve.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string>
#include <vector>

namespace fathom {

// Times from one mark on a stream to the next: of ops, which an op's graph hides, or of whole
// steps.
class OpTimes {
 public:
  ~OpTimes();  // prints a table to stderr

  // What ended here began at the mark before.
  void After(const char* what, cudaStream_t stream);
  // REQUIRES: the stream is synchronised.
  void Collect();

 private:
  struct Mark {
    const char* what;
    cudaEvent_t event;
  };
  std::vector<Mark> marks_;
  std::vector<cudaEvent_t> spare_;
  std::map<std::string, std::vector<double>> us_;  // of every call
};

}  // namespace fathom
