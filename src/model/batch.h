// What one step's forward pass works on, and how it is made from rows and slots.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "ops/op_runner.h"
#include "ops/ops.h"

namespace fathom {

// A row that takes the expanded form of MLA.
struct ExpandedRow {
  int64_t token_begin = 0;  // of the batch
  int64_t num_tokens = 0;
  int64_t position = 0;  // absolute, of its first token
  SlotId slot{};
};

struct Batch {
  int64_t tokens = 0;           // capacity; how many are live is map.live
  int64_t absorbed_tokens = 0;  // the first ones take the absorbed form
  TensorView ids;               // I32 [tokens]
  TokenMap map;
  TensorView absorbed_live;           // I32 [1]
  std::vector<ExpandedRow> expanded;  // the other tokens
};

// A row as the host knows it.
struct HostRow {
  SlotId slot{};
  int32_t position = 0;             // absolute, of the first token
  int32_t num_tokens = 0;           // of a decode: 1
  std::span<const TokenId> tokens;  // empty: the slot's last token, at the slot's length
};

struct BatchCapacity {
  int64_t rows = 0;
  int64_t tokens = 0;
};

// The device tensors of a step's inputs. One lives as long as its step.
class StepInputs {
 public:
  StepInputs(BatchCapacity capacity, Device& device);

  // Uploads the rows. Rows of up to `absorbed_row_limit` tokens take the absorbed form. The batch's
  // shapes have room for `padded` rows and tokens; zero: for those there are. Only a batch without
  // expanded rows may be padded. REQUIRES: rows and tokens within capacity, rows of the absorbed
  // form first.
  Batch Stage(std::span<const HostRow> rows, const SlotState& slots, int64_t absorbed_row_limit,
              BatchCapacity padded = {});
  // Computes ids, positions and slots of the staged rows' tokens on the device.
  void Prepare(OpRunner& run, const Batch& batch, const SlotState& slots);

  // Of the last Stage(): I32 [rows], [rows + 1], [1].
  TensorView row_slot() const { return row_slot_.Slice(0, 0, rows_); }
  TensorView row_begin() const { return row_begin_.Slice(0, 0, rows_ + 1); }
  TensorView live_rows() const { return live_rows_; }

 private:
  Device& device_;
  std::unique_ptr<DeviceMemory> memory_;
  TensorView row_slot_, row_begin_, plan_position_, live_rows_, absorbed_live_;
  TensorView plan_tokens_, ids_, positions_, token_slot_, live_tokens_;
  std::vector<int32_t> staging_;  // scratch
  int64_t rows_ = 0;
};

}  // namespace fathom
