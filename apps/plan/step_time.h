// How long a step takes on each of a layout's ranks, predicted from its bytes and operations:
// docs/plan.md.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gpu_figures.h"
#include "layout_plan.h"
#include "ops/kv_format.h"
#include "parallel/layout.h"

namespace fathom {

struct PlannedStep {
  int64_t rows = 1;    // of each group that has any; pipeline stages have them between their steps
  int64_t tokens = 1;  // of each row
  double context = 0;  // positions before them
  bool absorbed = true;
  int64_t groups = 1;  // that have rows; all groups wait for them
  double experts = 0;  // that tokens draw, of a layer's routed ones; 0: as if all were equally
                       // likely
};

// A part of a step on the rank that has most to do, over all layers.
struct StepPart {
  std::string_view name;
  double bytes = 0;  // read and written, on the device
  double operations = 0;
  double peer_bytes = 0;     // over links between devices
  double network_bytes = 0;  // of these, to other hosts
  double seconds = 0;
};

// What joins hosts. Nothing of it was measured: what is not said is assumed.
struct NetworkFigures {
  double bytes_per_s = 50e9;  // of each GPU, out and in at the same time: 400 Gbit/s
  double exchange_s = 20e-6;  // until what ranks exchange begins to arrive
};

struct StepTimeModel {
  const PlannedModel& planned;
  const KvFormat& kv;
  const GpuFigures& gpu;
  ParallelLayout layout;
  int gpus_each = 0;  // of a host; 0: all are of one
  NetworkFigures network;
};

// Until each row has its next token, in the order in which a layer has them; MTP layers are no part
// of a step. Of several pipeline stages that is a step on each of them, with the time in which it
// waits for those that take longer.
std::vector<StepPart> PartsOfStep(const StepTimeModel& model, const PlannedStep& step);
double Seconds(const std::vector<StepPart>& parts);

// Of one prompt, alone, in chunks of so many tokens, which stages work on at the same time.
double PrefillSeconds(const StepTimeModel& model, int64_t prompt, int64_t chunk);

}  // namespace fathom
