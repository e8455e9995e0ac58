// What a step must read, write and compute, from the configuration alone: the least that any
// implementation of the same formats could do.
#pragma once

#include <cstdint>

#include "checkpoint/model_config.h"
#include "ops/kv_format.h"

namespace fathom {

// WeightFormat::bytes_per_weight() each.
struct WeightWidths {
  double linear = 2;     // attention, dense layers, experts
  double absorbed = 2;   // W_UK and W_UV
  double head = 2;       // lm_head
  double embedding = 2;  // vectors of the table
};

// `rows` requests that compute `tokens` each, after `context` positions that are cached. Every row
// samples one, or `logit_vectors`.
struct WorkShape {
  int64_t rows = 1;
  int64_t tokens = 1;
  int64_t logit_vectors = 1;
  double context = 0;     // a mean over rows and steps may be a fraction
  bool absorbed = false;  // the form of MLA: one for all tokens, though a prompt's may differ
  double experts = 0;     // drawn by at least one token of a layer; 0: as ExpectedExperts
};

struct StepWork {
  double weight_bytes = 0;  // each weight once; of the experts those that are drawn
  double cache_read_bytes = 0;
  double cache_written_bytes = 0;
  double operations = 0;         // two to a multiply-add: matrices and attention
  double linear_operations = 0;  // of these, with weights of WeightWidths::linear

  double bytes() const { return weight_bytes + cache_read_bytes + cache_written_bytes; }
};

// MTP layers are no part of a step but behind decodes with drafts. Activations are not counted:
// they stay in caches.
StepWork WorkOf(const WorkShape& step, const ModelConfig& config, const WeightWidths& widths,
                const KvFormat& kv);

// Of decodes that verify `drafts` each, and have the draft layer propose as many: it goes over the
// step's tokens, then over one of each row for every further draft. REQUIRES: drafts >= 1.
StepWork WorkWithDrafts(WorkShape step, int64_t drafts, const ModelConfig& config,
                        const WeightWidths& widths, const KvFormat& kv);

// How many of `experts` are drawn by at least one of `tokens`, each of which draws `topk` different
// ones, all equally likely: n (1 - (1 - k / n)^t).
double ExpectedExperts(int64_t experts, int64_t topk, int64_t tokens);

}  // namespace fathom
