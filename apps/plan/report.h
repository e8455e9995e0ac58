// What `fathom plan` found, as text and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout_plan.h"
#include "step_time.h"

namespace fathom {

struct PlannedDecode {
  int64_t batch = 0;      // requests of each group
  bool too_many = false;  // more than --max-num-seqs
  bool fits = false;      // neither that, nor more than the cache holds
  std::vector<StepPart> parts;
  double seconds = 0;
  double tokens_per_s = 0;  // of all groups
};

struct PlannedPrefill {
  int64_t tokens = 0;
  double seconds = 0;
};

struct LayoutReport {
  LayoutPlan plan;
  std::vector<PlannedDecode> decodes;
  std::vector<PlannedPrefill> prefills;

  double latency() const;  // of a token of the smallest batch that fits
  // The batch that fits and has most tokens a second; null: none fits.
  const PlannedDecode* fastest() const;
};

// Of several hosts.
struct ReportedHosts {
  int count = 1;
  int gpus_each = 0;  // 0: there is but one
  NetworkFigures network;
  bool assumed = false;  // a figure of it
};

struct PlanReport {
  std::string model;
  ModelConfig config;
  std::string kv_cache;
  GpuFigures gpu;
  bool figures_given = false;  // some of them, in place of the stored ones
  int64_t context = 0;
  ReportedHosts hosts;
  std::vector<LayoutReport> layouts;  // the best for latency first
  std::vector<std::pair<ParallelLayout, std::string>> refused;

  std::vector<const LayoutReport*> ByThroughput() const;
};

void PrintJson(const PlanReport& report);
void PrintTable(const PlanReport& report);

}  // namespace fathom
