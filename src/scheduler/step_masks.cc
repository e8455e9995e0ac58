#include "scheduler/step_masks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/token_mask.h"
#include "scheduler/message_io.h"

namespace fathom {
namespace {

static_assert(std::endian::native == std::endian::little, "words are sent as they lie in memory");

Result<std::vector<uint32_t>> RowMasks(std::string_view bytes, const SlotMaskRoom& room) {
  const auto mask_bytes = static_cast<uint64_t>(MaskWords(room.vocab)) * sizeof(uint32_t);
  if (bytes.size() % mask_bytes != 0) {
    return DataLoss("step masks: {} bytes of a row, not a multiple of {}", bytes.size(),
                    mask_bytes);
  }
  const uint64_t masks = bytes.size() / mask_bytes;
  const uint64_t most = 1 + static_cast<uint64_t>(room.max_drafts);
  if (masks > most) return DataLoss("step masks: {} masks of a row, at most {}", masks, most);
  std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
  if (!bytes.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

}  // namespace

// Step and masks, those as an array of a binary for each masked row.
std::string Serialize(const StepMasks& masks) {
  MessageWriter out;
  out.Header(2);
  out(masks.step);
  out.Header(masks.masks.size());
  for (const auto& words : masks.masks) out.Binary(std::as_bytes(std::span(words)));
  return out.Take();
}

Result<StepMasks> ParseStepMasks(std::string_view bytes, const StepPlan& plan,
                                 const SlotMaskRoom& room) {
  CHECK(room.vocab > 0 && room.max_drafts >= 0);
  MessageReader in("step masks", bytes);
  StepMasks masks;
  in.Header(2);
  in(masks.step);
  TRY(in.status());
  if (masks.step != plan.step) {
    return DataLoss("step masks: of step {}, and the plan is of step {}", masks.step, plan.step);
  }
  const uint32_t rows = in.Count(kMaxStepRows);
  TRY(in.status());
  const auto masked = std::count_if(plan.rows.begin(), plan.rows.end(),
                                    [](const StepRow& row) { return row.masked; });
  if (rows != masked) return DataLoss("step masks: of {} rows, and {} are masked", rows, masked);
  for (const StepRow& row : plan.rows) {
    if (!row.masked) continue;
    const std::string_view of_row = in.Binary();
    TRY(in.status());
    masks.masks.push_back(TRY(RowMasks(of_row, room)));
  }
  if (!in.AtEnd()) return DataLoss("step masks: bytes after their end");
  return masks;
}

}  // namespace fathom
