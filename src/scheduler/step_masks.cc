#include "scheduler/step_masks.h"

#include <msgpuck.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <span>

#include "base/check.h"
#include "base/token_mask.h"

namespace fathom {
namespace {

static_assert(std::endian::native == std::endian::little, "words are sent as they lie in memory");

// An array of step and masks, and that an array of a binary for each masked row.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  Result<uint32_t> Array() {
    if (!Is(MP_ARRAY) || mp_check_array(at_, end_) > 0) {
      return DataLoss("step masks: an array was expected");
    }
    return mp_decode_array(&at_);
  }
  Result<uint64_t> Uint() {
    if (!Is(MP_UINT) || mp_check_uint(at_, end_) > 0) {
      return DataLoss("step masks: an unsigned number was expected");
    }
    return mp_decode_uint(&at_);
  }
  Result<std::string_view> Binary() {
    // The library asserts that a byte follows the type's.
    if (!Is(MP_BIN) || end_ - at_ < 2 || mp_check_binl(at_, end_) > 0) {
      return DataLoss("step masks: a mask was expected");
    }
    const uint32_t size = mp_decode_binl(&at_);
    if (size > end_ - at_) return DataLoss("step masks: {} bytes, {} left", size, end_ - at_);
    at_ += size;
    return std::string_view(at_ - size, size);
  }
  bool AtEnd() const { return at_ == end_; }

 private:
  bool Is(mp_type type) const { return at_ != end_ && mp_typeof(*at_) == type; }

  const char* at_;
  const char* end_;
};

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

std::string Serialize(const StepMasks& masks) {
  size_t size = 32 + masks.masks.size() * 5;  // scalars and headers take no more
  for (const auto& words : masks.masks) {
    // What a binary's header can say.
    CHECK(words.size() <= std::numeric_limits<uint32_t>::max() / sizeof(uint32_t));
    size += words.size() * sizeof(uint32_t);
  }
  std::string out(size, '\0');
  char* at = mp_encode_array(out.data(), 2);
  at = mp_encode_uint(at, masks.step);
  at = mp_encode_array(at, static_cast<uint32_t>(masks.masks.size()));
  for (const auto& words : masks.masks) {
    const auto bytes = std::as_bytes(std::span(words));
    at = mp_encode_binl(at, static_cast<uint32_t>(bytes.size()));
    if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
    at += bytes.size();
  }
  out.resize(static_cast<size_t>(at - out.data()));
  return out;
}

Result<StepMasks> ParseStepMasks(std::string_view bytes, const StepPlan& plan,
                                 const SlotMaskRoom& room) {
  CHECK(room.vocab > 0 && room.max_drafts >= 0);
  Reader in(bytes);
  const uint32_t fields = TRY(in.Array());
  if (fields != 2) return DataLoss("step masks: a record of {} fields", fields);
  StepMasks masks;
  masks.step = TRY(in.Uint());
  if (masks.step != plan.step) {
    return DataLoss("step masks: of step {}, and the plan is of step {}", masks.step, plan.step);
  }
  const uint32_t rows = TRY(in.Array());
  const auto masked = std::count_if(plan.rows.begin(), plan.rows.end(),
                                    [](const StepRow& row) { return row.masked; });
  if (rows != masked) return DataLoss("step masks: of {} rows, and {} are masked", rows, masked);
  for (const StepRow& row : plan.rows) {
    if (!row.masked) continue;
    const std::string_view of_row = TRY(in.Binary());
    masks.masks.push_back(TRY(RowMasks(of_row, room)));
  }
  if (!in.AtEnd()) return DataLoss("step masks: bytes after their end");
  return masks;
}

}  // namespace fathom
