#include "engine/result_message.h"

#include <bit>
#include <utility>

#include "scheduler/message_io.h"
#include "scheduler/step_plan.h"
#include "speculation/speculation.h"

namespace fathom {
namespace {

constexpr int64_t kMaxTokens = 1 << 22;  // of a row: prompts have no more
constexpr uint32_t kLastCode = static_cast<uint32_t>(StatusCode::kInternal);

// By its bits: log-probabilities may be infinite, or NaN in a row that failed.
void Put(MessageWriter& io, float value) {
  io(std::bit_cast<uint32_t>(value));
}
void Put(MessageReader& io, float& value) {
  uint32_t bits = 0;
  io(bits);
  value = std::bit_cast<float>(bits);
}

void Put(MessageWriter& io, const Status& status) {
  io.Header(2);
  io(static_cast<uint32_t>(status.code()));
  io(status.message());
}
void Put(MessageReader& io, Status& status) {
  uint32_t code = 0;
  std::string message;
  io.Header(2);
  io(code);
  io(message);
  if (code > kLastCode) return io.Fail(DataLoss("step result: status {}", code));
  if (code > 0) status = Status(static_cast<StatusCode>(code), std::move(message));
}

}  // namespace

// Where MessageWriter and MessageReader find them: not in a namespace without a name.

static void Fields(MessageWriter& io, const TokenLogprobs& logprobs) {
  io.Header(2);
  Put(io, logprobs.logprob);
  io.Header(2 * logprobs.top.size());
  for (const auto& [token, logprob] : logprobs.top) io(token), Put(io, logprob);
}
static void Fields(MessageReader& io, TokenLogprobs& logprobs) {
  io.Header(2);
  Put(io, logprobs.logprob);
  logprobs.top.resize(io.Count(2 * kMaxTokens) / 2);
  for (auto& [token, logprob] : logprobs.top) io(token), Put(io, logprob);
}

static void Fields(MessageWriter& io, const GeneratedToken& token) {
  io.Header(token.logprobs ? 2 : 1);
  io(token.id);
  if (token.logprobs) Fields(io, *token.logprobs);
}
static void Fields(MessageReader& io, GeneratedToken& token) {
  const uint32_t fields = io.Count(2);
  io(token.id);
  if (fields == 2) Fields(io, token.logprobs.emplace());
}

template <class Io, class Row>
static void RowFields(Io& io, Row& row) {
  io.Header(5);
  Put(io, row.status);
  io(row.tokens, kMaxTokens), io(row.drafts), io(row.proposed, Speculation::kMostTokens);
  io(row.prompt_logprobs, kMaxTokens);
}
static void Fields(MessageWriter& io, const RowResult& row) {
  RowFields(io, row);
}
static void Fields(MessageReader& io, RowResult& row) {
  RowFields(io, row);
}

template <class Io, class Message>
static void ResultFields(Io& io, Message& result) {
  io.Header(3);
  io(result.step);
  Put(io, result.status);
  io(result.rows, kMaxStepRows);
}

template <class Io, class Rank>
static void StatsFields(Io& io, Rank& of) {
  io.Header(5 + of.memory.size());
  io(of.rank), io(of.stage), io(of.group), io(of.steps), io(of.busy_ns);
  for (auto& bytes : of.memory) io(bytes);
}
static void Fields(MessageWriter& io, const RankStats& of) {
  StatsFields(io, of);
}
static void Fields(MessageReader& io, RankStats& of) {
  StatsFields(io, of);
}

std::string Serialize(const StepResult& result) {
  MessageWriter out;
  ResultFields(out, result);
  return out.Take();
}

Result<StepResult> ParseStepResult(std::string_view bytes) {
  MessageReader in("step result", bytes);
  StepResult result;
  ResultFields(in, result);
  TRY(in.status());
  if (!in.AtEnd()) return DataLoss("step result: bytes after its end");
  return result;
}

std::string Serialize(const std::vector<RankStats>& ranks) {
  MessageWriter out;
  out(ranks);
  return out.Take();
}

Result<std::vector<RankStats>> ParseRankStats(std::string_view bytes, int64_t most) {
  MessageReader in("ranks' metrics", bytes);
  std::vector<RankStats> ranks;
  in(ranks, most);
  TRY(in.status());
  if (!in.AtEnd()) return DataLoss("ranks' metrics: bytes after their end");
  return ranks;
}

}  // namespace fathom
