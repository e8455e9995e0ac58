// What a device keeps of a running request, and what it does with a row of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "scheduler/scheduler.h"
#include "simulation/fault.h"
#include "simulation/pretend_model.h"

namespace fathom::simulation {

// What stands at a position of a page: a hash of all that a latent depends on, which is every token
// up to its own and the form that each of them took. 0: nothing was ever written there.
using Cell = uint64_t;

// What all slots of a device share.
struct FakeMemory {
  const SchedulerOptions options;
  const PretendModel* const model;
  const Fault fault;
  const std::function<void(std::string)> complain;
  std::vector<Cell> cells;  // [page, offset]
  // Of a draft layer: [page, offset]. Of the cell and of the next token.
  std::vector<Cell> draft_cells = {};
  int64_t drafts_accepted = 0;
  int64_t drafts_rejected = 0;
  int64_t rows_of_nothing = 0;  // decodes that found no live token
};

class FakeSlot {
 public:
  void Open(const SlotOpening& opening, FakeMemory& memory);
  RequestId request() const { return opening_.request; }
  // Complains of a row that does not fit what the slot holds, and of a context that is not what it
  // must be.
  RowResult Run(const StepRow& row, FakeMemory& memory);

 private:
  AttentionForm FormAt(int32_t position, const SchedulerOptions& options) const;
  void AppendPages(const StepRow& row, FakeMemory& memory);
  // Null without a page.
  Cell* CellAt(int32_t position, FakeMemory& memory) const {
    return CellAt(position, memory.cells);
  }
  Cell* CellAt(int32_t position, std::vector<Cell>& cells) const;
  void CheckContext(FakeMemory& memory) const;
  void CheckKnown(const StepRow& row, FakeMemory& memory) const;
  std::vector<TokenId> LiveTokens(const StepRow& row, const FakeMemory& memory) const;
  void Write(const StepRow& row, const std::vector<TokenId>& tokens, FakeMemory& memory) const;
  void WriteDraftLayer(int32_t begin, const std::vector<TokenId>& successors,
                       FakeMemory& memory) const;
  void WriteChain(FakeMemory& memory) const;
  void Keep(const std::vector<TokenId>& tokens, size_t count, FakeMemory& memory);
  void ComputeKnown(const StepRow& row, FakeMemory& memory, RowResult& result);
  void Verify(const std::vector<TokenId>& tokens, FakeMemory& memory, RowResult& result);
  void Draw(int32_t position, TokenId previous, FakeMemory& memory, RowResult& result);
  void Fail(RowResult& result);
  TokenId Known(int32_t position) const;
  std::string Who() const;

  // As a real device's:
  SlotOpening opening_;
  std::vector<PageId> page_table_;
  int32_t length_ = 0;           // positions that are computed
  TokenId last_{-1};             // the newest token, which stands at length_
  int64_t generated_ = 0;        // tokens, in all lives
  bool ended_ = false;           // by a stop token, or at its final length
  std::vector<TokenId> drafts_;  // of what follows last_
  // What the cells below length_ must hold, from what is known of the request itself.
  std::vector<Cell> context_;
  std::vector<Cell> draft_context_;  // of a draft layer, but for the last one
};

}  // namespace fathom::simulation
