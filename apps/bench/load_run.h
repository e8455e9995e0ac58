// Sends a load's requests at their times, alone or as turns of talks.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client.h"
#include "source.h"
#include "summary.h"

namespace fathom {

struct LoadOptions {
  std::string base_url = "http://127.0.0.1:8000";
  std::string endpoint = "/v1/completions";
  std::string api_key;
  SourceOptions source;
  double request_rate = INFINITY;  // per second
  int32_t max_concurrency = 0;     // 0: any
  int32_t num_warmups = 1;
  double timeout_s = 3600;
  std::string dataset = "random";  // or "multi-turn": talks, each turn with all before it
  int32_t turns = 5;               // of a talk
  double think_time_s = 1;         // between an answer and the next turn, on average
  std::vector<std::string> goodput;
  std::string label;
  bool json = false;

  bool multi_turn() const { return dataset == "multi-turn"; }
};

class LoadRun {
 public:
  // All of these must outlive the run.
  LoadRun(const LoadOptions& options, const Target& target, const RequestSource& source);
  ~LoadRun();

  // Requests [first, first + count) of the source, at most options.max_concurrency at once; `turns`
  // after each other make a talk. REQUIRES: turns divide count.
  std::vector<RequestRecord> Run(int64_t first, int64_t count, double rate, int64_t turns = 1);

 private:
  class Sender;
  std::unique_ptr<Sender> sender_;
};

}  // namespace fathom
