#include "scheduler/step_plan.h"

#include <msgpuck.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

namespace fathom {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Values are unsigned numbers (a float is its bits), booleans, and arrays of values.
class Writer {
 public:
  void Header(size_t fields) { Array(fields); }
  void operator()(bool value) { out_.append(buffer_, mp_encode_bool(buffer_, value)); }
  void operator()(uint64_t value) { out_.append(buffer_, mp_encode_uint(buffer_, value)); }
  void operator()(uint32_t value) { (*this)(uint64_t{value}); }
  // REQUIRES: not negative, but for `least`.
  void operator()(int32_t value, int32_t least = 0) {
    (*this)(static_cast<uint64_t>(int64_t{value} - least));
  }
  void operator()(float value) { (*this)(uint64_t{std::bit_cast<uint32_t>(value)}); }
  template <class Id>
  requires std::is_enum_v<Id>
  void operator()(Id id) { (*this)(Raw(id)); }
  void operator()(AttentionForm form) { (*this)(form == AttentionForm::kExpanded); }
  template <class A, class B>
  void operator()(const std::pair<A, B>& pair) {
    Array(2);
    (*this)(pair.first);
    (*this)(pair.second);
  }
  template <class T>
  void operator()(const std::vector<T>& values, int64_t = 0) {
    Array(values.size());
    for (const T& value : values) Put(value);
  }
  std::string Take() { return std::move(out_); }

 private:
  template <class T>
  void Put(const T& value);  // by Fields(), or by one of the above
  void Array(size_t size) { out_.append(buffer_, mp_encode_array(buffer_, size)); }

  char buffer_[16];  // no scalar or header takes more than 9 bytes
  std::string out_;
};

// Stops at the first value that is not what it must be: what is read from there on is left alone.
// The mp_check_ functions tell whether a value runs past the end, the mp_decode_ functions trust.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  void Header(size_t fields) {
    if (Array(kMaxInt32) != fields) Fail(DataLoss("step plan: a record of other fields"));
  }
  void operator()(bool& value) {
    if (!Is(MP_BOOL)) return Fail(DataLoss("step plan: a boolean was expected"));
    value = mp_decode_bool(&at_);
  }
  void operator()(uint64_t& value) { value = Uint(std::numeric_limits<uint64_t>::max()); }
  void operator()(uint32_t& value) {
    value = static_cast<uint32_t>(Uint(std::numeric_limits<uint32_t>::max()));
  }
  void operator()(int32_t& value, int32_t least = 0) {
    value = static_cast<int32_t>(static_cast<int64_t>(Uint(kMaxInt32)) + least);
  }
  void operator()(float& value) {
    value = std::bit_cast<float>(static_cast<uint32_t>(Uint(std::numeric_limits<uint32_t>::max())));
    if (!std::isfinite(value)) Fail(DataLoss("step plan: a parameter that is no number"));
  }
  template <class Id>
  requires std::is_enum_v<Id>
  void operator()(Id& id) {
    std::underlying_type_t<Id> raw = 0;
    (*this)(raw);
    id = Id{raw};
  }
  void operator()(AttentionForm& form) {
    bool expanded = false;
    (*this)(expanded);
    form = expanded ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
  }
  template <class A, class B>
  void operator()(std::pair<A, B>& pair) {
    Header(2);
    (*this)(pair.first);
    (*this)(pair.second);
  }
  template <class T>
  void operator()(std::vector<T>& values, int64_t most = kMaxInt32) {
    const uint32_t size = Array(most);
    for (uint32_t i = 0; i < size && status_.ok(); ++i) Get(values.emplace_back());
  }

  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
    at_ = end_;
  }
  bool AtEnd() const { return at_ == end_; }
  const Status& status() const { return status_; }

 private:
  template <class T>
  void Get(T& value);  // by Fields(), or by one of the above

  bool Is(mp_type type) const {
    if (at_ == end_ || mp_typeof(*at_) != type) return false;
    return (type != MP_ARRAY || mp_check_array(at_, end_) <= 0) &&
           (type != MP_UINT || mp_check_uint(at_, end_) <= 0);
  }
  // An element takes a byte at least, so `most` and the bytes left both bound what is read.
  uint32_t Array(int64_t most) {
    if (!Is(MP_ARRAY)) return Fail(DataLoss("step plan: an array was expected")), 0;
    const uint32_t size = mp_decode_array(&at_);
    if (size <= most && size <= end_ - at_) return size;
    return Fail(DataLoss("step plan: array of {} items", size)), 0;
  }
  uint64_t Uint(uint64_t most) {
    if (!Is(MP_UINT)) return Fail(DataLoss("step plan: an unsigned number was expected")), 0;
    const uint64_t value = mp_decode_uint(&at_);
    if (value <= most) return value;
    return Fail(DataLoss("step plan: {} is above {}", value, most)), 0;
  }

  const char* at_;
  const char* end_;
  Status status_;
};

// What a plan consists of, in order: the one description, of both directions.

template <class Io, class Params>
void SamplingFields(Io& io, Params& p) {
  io.Header(10);
  io(p.temperature), io(p.top_k), io(p.top_p), io(p.min_p);
  io(p.presence_penalty), io(p.frequency_penalty), io(p.repetition_penalty);
  io(p.seed), io(p.logprobs, -1), io(p.logit_bias);
}

template <class Io, class Params>
void ParamsFields(Io& io, Params& p) {
  io.Header(7);
  io(p.prompt);
  SamplingFields(io, p.sampling);
  io(p.stop_tokens), io(p.max_tokens), io(p.min_tokens), io(p.prompt_logprobs, -1);
  io(p.masked);
}

void Fields(Writer& io, const SlotOpening& opening) {
  io.Header(6);
  io(opening.slot), io(opening.request), io(opening.generated);
  io(opening.length), io(opening.final_length);
  ParamsFields(io, *opening.params);
}

void Fields(Reader& io, SlotOpening& opening) {
  io.Header(6);
  io(opening.slot), io(opening.request), io(opening.generated);
  io(opening.length), io(opening.final_length);
  RequestParams params;
  ParamsFields(io, params);
  opening.params = std::make_shared<const RequestParams>(std::move(params));
}

template <class Io, class Row>
void Fields(Io& io, Row& row) {
  io.Header(11);
  io(row.slot), io(row.request), io(row.form), io(row.begin, kAtSlot), io(row.tokens);
  io(row.drafts), io(row.first_new_page), io(row.new_pages), io(row.samples);
  io(row.masked), io(row.prompt_logprobs);
}

template <class Io, class Shape>
void ShapeFields(Io& io, Shape& shape) {
  io.Header(6);
  io(shape.rows), io(shape.tokens), io(shape.logit_vectors), io(shape.logprob_vectors);
  io(shape.drafts), io(shape.eager);
}

template <class Io, class Plan>
void PlanFields(Io& io, Plan& plan) {
  io.Header(4);
  io(plan.step);
  ShapeFields(io, plan.shape);
  io(plan.openings, kMaxStepRows), io(plan.rows, kMaxStepRows);
}

template <class T>
constexpr bool kIsRecord = std::is_same_v<T, SlotOpening> || std::is_same_v<T, StepRow>;

template <class T>
void Writer::Put(const T& value) {
  if constexpr (kIsRecord<T>) {
    Fields(*this, value);
  } else {
    (*this)(value);
  }
}

template <class T>
void Reader::Get(T& value) {
  if constexpr (kIsRecord<T>) {
    Fields(*this, value);
  } else {
    (*this)(value);
  }
}

Status CheckRow(const StepRow& row) {
  if (row.is_decode() != (row.begin == kAtSlot)) {
    return DataLoss("step plan: {} tokens from position {}", row.tokens.size(), row.begin);
  }
  if (row.is_decode() && (!row.samples || row.prompt_logprobs)) {
    return DataLoss("step plan: a decode that does not sample, or scores a prompt");
  }
  if (row.drafts > 0 && !row.is_decode()) {
    return DataLoss("step plan: {} drafts beside {} tokens", row.drafts, row.tokens.size());
  }
  if (row.masked && !row.samples) {
    return DataLoss("step plan: a mask of a row that samples nothing");
  }
  if (row.drafts == kMaxInt32 || row.num_tokens() > kMaxInt32 - std::max(row.begin, 0)) {
    return DataLoss("step plan: a row of too many tokens");
  }
  return {};
}

// No smaller than the part: logprob_vectors may be, as nobody but the scheduler knows who wants
// log-probabilities.
Status CheckShape(const StepPlan& plan) {
  if (plan.num_tokens() > kMaxInt32) return DataLoss("step plan: too many tokens");
  StepShape shape = plan.shape;
  Widen(shape, plan, /*logprobs=*/false);
  if (shape == plan.shape && shape.logprob_vectors <= shape.logit_vectors && shape.drafts >= 0) {
    return {};
  }
  return DataLoss(
      "step plan: a shape of {} rows, {} tokens, {} logit vectors does not hold its rows",
      plan.shape.rows, plan.shape.tokens, plan.shape.logit_vectors);
}

}  // namespace

bool StepPlans::has_rows() const {
  return std::any_of(groups.begin(), groups.end(),
                     [](const StepPlan& part) { return !part.rows.empty(); });
}

std::vector<StepRow> StepPlans::Rows() const {
  std::vector<StepRow> rows;
  for (const StepPlan& part : groups) rows.insert(rows.end(), part.rows.begin(), part.rows.end());
  return rows;
}

void Widen(StepShape& shape, const StepPlan& part, bool logprobs) {
  const auto logit_vectors = static_cast<int32_t>(part.num_logit_vectors());
  shape.rows = std::max(shape.rows, static_cast<int32_t>(part.rows.size()));
  shape.tokens = std::max(shape.tokens, static_cast<int32_t>(part.num_tokens()));
  shape.logit_vectors = std::max(shape.logit_vectors, logit_vectors);
  if (logprobs) shape.logprob_vectors = std::max(shape.logprob_vectors, logit_vectors);
  shape.eager |= std::any_of(part.rows.begin(), part.rows.end(), [](const StepRow& row) {
    return row.form == AttentionForm::kExpanded || row.prompt_logprobs;
  });
}

std::string Serialize(const StepPlan& plan) {
  Writer out;
  PlanFields(out, plan);
  return out.Take();
}

Result<StepPlan> ParseStepPlan(std::string_view bytes) {
  if (bytes.size() > kMaxStepPlanBytes) {
    return DataLoss("step plan: {} bytes, at most {}", bytes.size(), kMaxStepPlanBytes);
  }
  Reader in(bytes);
  StepPlan plan;
  PlanFields(in, plan);
  TRY(in.status());
  if (!in.AtEnd()) return DataLoss("step plan: bytes after its end");
  for (const StepRow& row : plan.rows) TRY(CheckRow(row));
  TRY(CheckShape(plan));
  return plan;
}

}  // namespace fathom
