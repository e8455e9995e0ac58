#include "scheduler/step_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "scheduler/message_io.h"

namespace fathom {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// What a plan consists of, in order: the one description, of both directions.

template <class Io, class Params>
void SamplingFields(Io& io, Params& p) {
  io.Header(11);
  io(p.temperature), io(p.top_k), io(p.top_p), io(p.min_p);
  io(p.presence_penalty), io(p.frequency_penalty), io(p.repetition_penalty);
  io(p.seed), io(p.logprobs, -1), io(p.logprob_token_ids), io(p.logit_bias);
}

template <class Io, class Params>
void ParamsFields(Io& io, Params& p) {
  io.Header(7);
  io(p.prompt);
  SamplingFields(io, p.sampling);
  io(p.stop_tokens), io(p.max_tokens), io(p.min_tokens), io(p.prompt_logprobs, -1);
  io(p.masked);
}

template <class Io, class Row>
void RowFields(Io& io, Row& row) {
  io.Header(11);
  io(row.slot), io(row.request), io(row.form), io(row.begin, kAtSlot), io(row.tokens);
  io(row.drafts), io(row.first_new_page), io(row.new_pages), io(row.samples);
  io(row.masked), io(row.prompt_logprobs);
}

}  // namespace

// Where MessageWriter and MessageReader find them: not in a namespace without a name.

static void Fields(MessageWriter& io, const SlotOpening& opening) {
  io.Header(6);
  io(opening.slot), io(opening.request), io(opening.generated);
  io(opening.length), io(opening.final_length);
  ParamsFields(io, *opening.params);
}

static void Fields(MessageReader& io, SlotOpening& opening) {
  io.Header(6);
  io(opening.slot), io(opening.request), io(opening.generated);
  io(opening.length), io(opening.final_length);
  RequestParams params;
  ParamsFields(io, params);
  opening.params = std::make_shared<const RequestParams>(std::move(params));
}

static void Fields(MessageWriter& io, const StepRow& row) {
  RowFields(io, row);
}

static void Fields(MessageReader& io, StepRow& row) {
  RowFields(io, row);
}

namespace {

template <class Io, class Shape>
void ShapeFields(Io& io, Shape& shape) {
  io.Header(7);
  io(shape.rows), io(shape.tokens), io(shape.logit_vectors), io(shape.logprob_vectors);
  io(shape.drafts), io(shape.eager), io(shape.known);
}

template <class Io, class Plan>
void PlanFields(Io& io, Plan& plan) {
  io.Header(4);
  io(plan.step);
  ShapeFields(io, plan.shape);
  io(plan.openings, kMaxStepRows), io(plan.rows, kMaxStepRows);
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
  shape.known |= !std::ranges::all_of(part.rows, &StepRow::is_decode);
}

std::string Serialize(const StepPlan& plan) {
  MessageWriter out;
  PlanFields(out, plan);
  return out.Take();
}

Result<StepPlan> ParseStepPlan(std::string_view bytes) {
  if (bytes.size() > kMaxStepPlanBytes) {
    return DataLoss("step plan: {} bytes, at most {}", bytes.size(), kMaxStepPlanBytes);
  }
  MessageReader in("step plan", bytes);
  StepPlan plan;
  PlanFields(in, plan);
  TRY(in.status());
  if (!in.AtEnd()) return DataLoss("step plan: bytes after its end");
  for (const StepRow& row : plan.rows) TRY(CheckRow(row));
  TRY(CheckShape(plan));
  return plan;
}

}  // namespace fathom
