#include "simulation/fake_slot.h"

#include <fmt/format.h>

#include <algorithm>

namespace fathom::simulation {
namespace {

constexpr Cell kBeforeAll = 0x9e3779b97f4a7c15, kChained = 0x2545f4914f6cdd1d;

Cell Chain(Cell before, TokenId token, AttentionForm form) {
  const auto what = static_cast<uint64_t>(Raw(token)) * 2 + (form == AttentionForm::kExpanded);
  Cell cell = (before ^ (what + 1)) * 0xbf58476d1ce4e5b9;
  cell ^= cell >> 29;
  return cell != 0 ? cell : 1;
}

}  // namespace

void FakeSlot::Open(const SlotOpening& opening, FakeMemory& memory) {
  *this = FakeSlot{};
  opening_ = opening;
  generated_ = static_cast<int64_t>(opening.generated.size());
  if (memory.fault == Fault::kEarlierTokensForgotten) generated_ = 0;
  const auto known = static_cast<int32_t>(opening.params->prompt.size() + opening.generated.size());
  if (opening.length < 0 || opening.length >= known) {
    memory.complain(fmt::format("{}: opens at {} of {} tokens", Who(), opening.length, known));
  }
  std::vector<TokenId> shared;
  for (int32_t at = 0; at < std::min(opening.length, known - 1); ++at) shared.push_back(Known(at));
  Keep(shared, shared.size(), memory);
}

RowResult FakeSlot::Run(const StepRow& row, FakeMemory& memory) {
  AppendPages(row, memory);
  CheckContext(memory);
  RowResult result;
  if (row.is_decode()) {
    const std::vector<TokenId> tokens = LiveTokens(row, memory);
    Write(row, tokens, memory);
    Verify(tokens, memory, result);
  } else {
    CheckKnown(row, memory);
    Write(row, row.tokens, memory);
    ComputeKnown(row, memory, result);
  }
  if (!result.tokens.empty()) {
    drafts_ = memory.model->Drafts(row.request, *opening_.params, length_, last_, generated_,
                                   memory.options.max_drafts);
    WriteChain(memory);
  }
  return result;
}

// Told in other words than base/attention_form.h tells it: a prompt's part of a chunk is longer
// than the limit if it has a token that many after its first.
AttentionForm FakeSlot::FormAt(int32_t position, const SchedulerOptions& options) const {
  const auto prompt = static_cast<int64_t>(opening_.params->prompt.size());
  const int64_t first = position - position % options.prefill_chunk;
  if (options.reuse_decoded) return AttentionForm::kAbsorbed;  // forms are not told apart
  const bool longer =
      options.absorbed_limit < options.prefill_chunk && options.absorbed_limit < prompt - first;
  return position < prompt && longer ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
}

void FakeSlot::AppendPages(const StepRow& row, FakeMemory& memory) {
  if (row.first_new_page != static_cast<int32_t>(page_table_.size())) {
    memory.complain(fmt::format("{}: page table entry {} of {}", Who(), row.first_new_page,
                                page_table_.size()));
    page_table_.resize(static_cast<size_t>(row.first_new_page));
  }
  for (PageId page : row.new_pages) {
    const bool ignore = memory.fault == Fault::kPageIgnored && row.is_decode();
    page_table_.push_back(ignore ? PageId{0} : page);
  }
  if (page_table_.size() > static_cast<size_t>(PagesFor(opening_.final_length - 1))) {
    memory.complain(Who() + ": more pages than it can ever fill");
  }
}

Cell* FakeSlot::CellAt(int32_t position, std::vector<Cell>& cells) const {
  const auto entry = static_cast<size_t>(position / kPageTokens);
  if (entry >= page_table_.size()) return nullptr;
  const auto page = static_cast<size_t>(Raw(page_table_[entry]));
  return &cells.at(page * kPageTokens + static_cast<size_t>(position % kPageTokens));
}

// Every position before the row's holds what it must.
void FakeSlot::CheckContext(FakeMemory& memory) const {
  for (int32_t at = 0; at < length_; ++at) {
    const Cell* cell = CellAt(at, memory);
    if (cell != nullptr && *cell == context_[static_cast<size_t>(at)]) continue;
    memory.complain(fmt::format("{}: position {} {}", Who(), at,
                                cell == nullptr ? "has no page" : "holds something else"));
    return;
  }
  for (int32_t at = 0; at < length_ - 1; ++at) {
    // The last entry of a page that others wrote was made with the token that they had behind it.
    if (at < opening_.length && (at + 1) % kPageTokens == 0) continue;
    const Cell* cell = CellAt(at, memory.draft_cells);
    if (cell != nullptr && *cell == draft_context_[static_cast<size_t>(at)]) continue;
    memory.complain(fmt::format("{}: the draft layer's entry at {} is another", Who(), at));
    return;
  }
}

void FakeSlot::CheckKnown(const StepRow& row, FakeMemory& memory) const {
  if (row.begin != length_) {
    memory.complain(fmt::format("{}: a row from {} after {} tokens", Who(), row.begin, length_));
  }
  for (int32_t i = 0; i < row.num_tokens(); ++i) {
    const int32_t at = row.begin + i;
    if (row.tokens[static_cast<size_t>(i)] != Known(at)) {
      memory.complain(fmt::format("{}: another token at {}", Who(), at));
    }
    const bool expanded = row.num_tokens() > memory.options.absorbed_limit;
    const AttentionForm form = !memory.options.reuse_decoded ? FormAt(at, memory.options)
                               : expanded                    ? AttentionForm::kExpanded
                                                             : AttentionForm::kAbsorbed;
    if (row.form != form) {
      memory.complain(fmt::format("{}: another form at {}", Who(), at));
      return;
    }
  }
}

// The newest token and its drafts, as far as the row holds them and the request may still go.
std::vector<TokenId> FakeSlot::LiveTokens(const StepRow& row, const FakeMemory& memory) const {
  auto live = static_cast<int32_t>(1 + drafts_.size());
  if (memory.fault != Fault::kCapacityIgnored) live = std::min(live, row.num_tokens());
  if (memory.fault != Fault::kEndIgnored) {
    live = ended_ ? 0 : std::min(live, opening_.final_length - 1 - length_);
  }
  std::vector<TokenId> tokens = {last_};
  tokens.insert(tokens.end(), drafts_.begin(), drafts_.end());
  tokens.resize(static_cast<size_t>(live));
  return tokens;
}

void FakeSlot::Write(const StepRow& row, const std::vector<TokenId>& tokens,
                     FakeMemory& memory) const {
  const int32_t begin = row.is_decode() ? length_ : row.begin;
  int32_t reserved = static_cast<int32_t>(page_table_.size()) * kPageTokens;
  if (memory.fault == Fault::kPagesOfTheLeast && row.is_decode()) {
    reserved = std::min(reserved, PagesFor(length_ + 1) * kPageTokens);
  }
  Cell before = kBeforeAll;
  if (begin > 0) {
    const Cell* cell = CellAt(begin - 1, memory);
    before = cell != nullptr ? *cell : 0;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t at = begin + static_cast<int32_t>(i);
    if (at >= reserved) {
      memory.complain(fmt::format("{}: no page for position {}", Who(), at));
      return;
    }
    if (at >= opening_.final_length - 1) {
      memory.complain(fmt::format("{}: position {} is computed, and it ends with {} tokens", Who(),
                                  at, opening_.final_length));
    }
    const bool forms = !memory.options.reuse_decoded;
    before = Chain(before, tokens[i], forms ? row.form : AttentionForm::kAbsorbed);
    *CellAt(at, memory) = before;
  }
}

// Entries from `begin` on, each with the token that follows its own.
void FakeSlot::WriteDraftLayer(int32_t begin, const std::vector<TokenId>& successors,
                               FakeMemory& memory) const {
  for (size_t i = 0; i < successors.size(); ++i) {
    const int32_t at = begin + static_cast<int32_t>(i);
    Cell* cell = CellAt(at, memory.draft_cells);
    if (cell == nullptr) return;  // it has complained
    *cell = Chain(*CellAt(at, memory), successors[i], AttentionForm::kAbsorbed);
  }
}

// Behind what was drawn, where drafts are chained; no draft needs an entry behind the last
// position.
void FakeSlot::WriteChain(FakeMemory& memory) const {
  if (ended_) return;
  const int32_t entries = memory.options.lookahead + (memory.fault == Fault::kChainTooLong ? 1 : 0);
  for (int32_t i = 0; i < entries; ++i) {
    const int32_t at = std::min(length_ + i, opening_.final_length - 2);
    Cell* cell = CellAt(at, memory.draft_cells);
    if (cell == nullptr) return memory.complain(fmt::format("{}: no page for draft {}", Who(), at));
    *cell = kChained;
  }
}

// The first `count` tokens have joined the context.
void FakeSlot::Keep(const std::vector<TokenId>& tokens, size_t count, FakeMemory& memory) {
  for (size_t i = 0; i < count; ++i) {
    const Cell before = context_.empty() ? kBeforeAll : context_.back();
    if (!context_.empty()) {
      draft_context_.push_back(Chain(before, tokens[i], AttentionForm::kAbsorbed));
    }
    context_.push_back(Chain(before, tokens[i], FormAt(length_++, memory.options)));
  }
}

void FakeSlot::ComputeKnown(const StepRow& row, FakeMemory& memory, RowResult& result) {
  const auto prompt = static_cast<int32_t>(opening_.params->prompt.size());
  const int32_t end = row.begin + row.num_tokens();
  Keep(row.tokens, row.tokens.size(), memory);
  std::vector<TokenId> successors(row.tokens.begin() + 1, row.tokens.end());
  if (!row.samples) successors.push_back(Known(end));
  WriteDraftLayer(row.begin, successors, memory);
  if (memory.model->FirstNaN(row.request) < end) return Fail(result);
  if (row.prompt_logprobs) {
    if (opening_.params->prompt_logprobs < 0) {
      memory.complain(Who() + ": log-probabilities that nobody asked for");
    }
    for (int32_t at = row.begin + 1; at < std::min(end + 1, prompt); ++at) {
      result.prompt_logprobs.push_back(
          {.logprob = memory.model->PromptLogprob(row.request, at, Known(at)), .top = {}});
    }
  }
  if (row.samples) Draw(end, row.tokens.back(), memory, result);
  if (row.samples) WriteDraftLayer(end - 1, {last_}, memory);
}

// Draws what follows each token in turn. A draft stands if it is what was drawn; logits behind one
// that does not stand are nobody's, NaN or not.
void FakeSlot::Verify(const std::vector<TokenId>& tokens, FakeMemory& memory, RowResult& result) {
  if (tokens.empty()) {
    ++memory.rows_of_nothing;
    return;
  }
  if (ended_) return Keep(tokens, 1, memory);  // Fault::kEndIgnored
  const int32_t begin = length_;
  size_t accepted = 0;
  while (accepted < tokens.size() && !ended_) {
    const int32_t next = begin + static_cast<int32_t>(accepted) + 1;
    const bool stands =
        memory.fault == Fault::kDraftsUnverified || accepted == 0 || tokens[accepted] == last_;
    if (!stands) break;
    if (memory.model->FirstNaN(opening_.request) < next) return Fail(result);
    Draw(next, tokens[accepted++], memory, result);
  }
  std::vector<TokenId> drawn;
  for (const GeneratedToken& token : result.tokens) drawn.push_back(token.id);
  WriteDraftLayer(begin, drawn, memory);
  memory.drafts_accepted += static_cast<int64_t>(accepted) - 1;
  memory.drafts_rejected += static_cast<int64_t>(tokens.size() - accepted);
  const bool keep_all = memory.fault == Fault::kRejectedDraftsKept;
  Keep(tokens, keep_all ? tokens.size() : accepted, memory);
  if (memory.fault == Fault::kRowsCounted) generated_ -= static_cast<int64_t>(accepted) - 1;
  if (memory.fault == Fault::kAcceptedTokenLost && accepted > 1) {
    result.tokens.erase(result.tokens.begin());
  }
}

// The token at `position`, by which the request may end.
void FakeSlot::Draw(int32_t position, TokenId previous, FakeMemory& memory, RowResult& result) {
  const RequestParams& params = *opening_.params;
  const RequestId request = opening_.request;
  last_ = memory.model->Next(request, params, position, previous, generated_);
  result.tokens.push_back({.id = last_, .logprobs = {}});
  const bool may_stop = generated_++ >= params.min_tokens;
  const auto& stops = params.stop_tokens;
  const bool stop = may_stop && memory.fault != Fault::kStopTokenIgnored &&
                    std::find(stops.begin(), stops.end(), last_) != stops.end();
  ended_ = stop || position + 1 == opening_.final_length;
}

void FakeSlot::Fail(RowResult& result) {
  result.status = Internal("NaN logits");
  ended_ = true;
}

TokenId FakeSlot::Known(int32_t position) const {
  const std::vector<TokenId>& prompt = opening_.params->prompt;
  const auto at = static_cast<size_t>(position);
  if (at < prompt.size()) return prompt[at];
  const size_t generated = at - prompt.size();
  return generated < opening_.generated.size() ? opening_.generated[generated] : TokenId{-1};
}

std::string FakeSlot::Who() const {
  return fmt::format("request {}", Raw(opening_.request));
}

}  // namespace fathom::simulation
