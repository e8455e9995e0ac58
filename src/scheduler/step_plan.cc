#include "scheduler/step_plan.h"

#include <msgpuck.h>

#include <limits>

namespace fathom {
namespace {

// [step, [row, ...]] with row = [slot, request, position, num_tokens, tokens, first_new_page,
// new_pages, samples, prompt_logprobs].
constexpr uint32_t kPlanFields = 2;
constexpr uint32_t kRowFields = 9;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

class Writer {
 public:
  void Array(size_t size) { out_.append(buffer_, mp_encode_array(buffer_, size)); }
  void Uint(uint64_t value) { out_.append(buffer_, mp_encode_uint(buffer_, value)); }
  void Bool(bool value) { out_.append(buffer_, mp_encode_bool(buffer_, value)); }
  template <class Id>
  void Ids(const std::vector<Id>& ids) {
    Array(ids.size());
    for (Id id : ids) Uint(Raw(id));
  }
  std::string Take() { return std::move(out_); }

 private:
  char buffer_[16];  // no scalar or header takes more than 9 bytes
  std::string out_;
};

// The mp_check_ functions tell whether a value runs past the end, the mp_decode_ functions trust.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  // An element takes a byte at least, so `max` and the bytes left both bound what is reserved.
  Result<uint32_t> Array(int64_t max) {
    if (at_ == end_ || mp_typeof(*at_) != MP_ARRAY || mp_check_array(at_, end_) > 0) {
      return DataLoss("step plan: an array was expected");
    }
    const uint32_t size = mp_decode_array(&at_);
    if (size > max || size > end_ - at_) return DataLoss("step plan: array of {} items", size);
    return size;
  }
  Result<uint64_t> Uint(uint64_t max) {
    if (at_ == end_ || mp_typeof(*at_) != MP_UINT || mp_check_uint(at_, end_) > 0) {
      return DataLoss("step plan: an unsigned number was expected");
    }
    const uint64_t value = mp_decode_uint(&at_);
    if (value > max) return DataLoss("step plan: {} is above {}", value, max);
    return value;
  }
  Result<int32_t> Int32() { return static_cast<int32_t>(TRY(Uint(kMaxInt32))); }
  Result<bool> Bool() {
    if (at_ == end_ || mp_typeof(*at_) != MP_BOOL) {
      return DataLoss("step plan: a boolean was expected");
    }
    return mp_decode_bool(&at_);
  }
  template <class Id>
  Result<std::vector<Id>> Ids() {
    std::vector<Id> ids(TRY(Array(kMaxInt32)));
    for (Id& id : ids) id = Id{TRY(Int32())};
    return ids;
  }
  bool AtEnd() const { return at_ == end_; }

 private:
  const char* at_;
  const char* end_;
};

Result<StepRow> ReadRow(Reader& in) {
  if (TRY(in.Array(kRowFields)) != kRowFields) return DataLoss("step plan: a row of other fields");
  StepRow row;
  row.slot = SlotId{TRY(in.Int32())};
  row.request = RequestId{TRY(in.Uint(std::numeric_limits<uint64_t>::max()))};
  row.position = TRY(in.Int32());
  row.num_tokens = TRY(in.Int32());
  row.tokens = TRY(in.Ids<TokenId>());
  row.first_new_page = TRY(in.Int32());
  row.new_pages = TRY(in.Ids<PageId>());
  row.samples = TRY(in.Bool());
  row.prompt_logprobs = TRY(in.Bool());
  if (row.num_tokens < 1 || row.num_tokens > kMaxInt32 - row.position) {
    return DataLoss("step plan: {} tokens from position {}", row.num_tokens, row.position);
  }
  if (!row.tokens.empty() && row.tokens.size() != static_cast<size_t>(row.num_tokens)) {
    return DataLoss("step plan: {} tokens in a row of {}", row.tokens.size(), row.num_tokens);
  }
  return row;
}

}  // namespace

std::string Serialize(const StepPlan& plan) {
  Writer out;
  out.Array(kPlanFields);
  out.Uint(plan.step);
  out.Array(plan.rows.size());
  for (const StepRow& row : plan.rows) {
    out.Array(kRowFields);
    out.Uint(Raw(row.slot));
    out.Uint(Raw(row.request));
    out.Uint(row.position);
    out.Uint(row.num_tokens);
    out.Ids(row.tokens);
    out.Uint(row.first_new_page);
    out.Ids(row.new_pages);
    out.Bool(row.samples);
    out.Bool(row.prompt_logprobs);
  }
  return out.Take();
}

Result<StepPlan> ParseStepPlan(std::string_view bytes) {
  if (bytes.size() > kMaxStepPlanBytes) {
    return DataLoss("step plan: {} bytes, at most {}", bytes.size(), kMaxStepPlanBytes);
  }
  Reader in(bytes);
  if (TRY(in.Array(kPlanFields)) != kPlanFields) return DataLoss("step plan: other fields");
  StepPlan plan;
  plan.step = TRY(in.Uint(std::numeric_limits<uint64_t>::max()));
  const uint32_t rows = TRY(in.Array(kMaxStepRows));
  for (uint32_t i = 0; i < rows; ++i) plan.rows.push_back(TRY(ReadRow(in)));
  if (!in.AtEnd()) return DataLoss("step plan: bytes after its end");
  return plan;
}

}  // namespace fathom
