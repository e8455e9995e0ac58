#include "engine/grammar_guide.h"

#include <algorithm>
#include <utility>

#include "base/token_mask.h"

namespace fathom {

GrammarGuide::GrammarGuide(std::unique_ptr<GrammarState> state, const GenerateRequest& request,
                           int32_t vocab_size)
    : pace_(vocab_size),
      grammar_(request.grammar),
      state_(std::move(state)),
      begins_after_(request.grammar_after),
      before_it_begins_(static_cast<size_t>(MaskWords(vocab_size)), ~0U) {
  for (const TokenId stop : request.stop_tokens) {
    const auto id = static_cast<uint32_t>(Raw(stop));
    before_it_begins_[id / 32] &= ~(1U << (id % 32));
  }
}

Result<GrammarGuide> GrammarGuide::Start(const GenerateRequest& request, int32_t vocab_size) {
  GrammarGuide guide(TRY(request.grammar->Start()), request, vocab_size);
  TRY(guide.AppendMask());
  return guide;
}

Status GrammarGuide::AppendMask() {
  const size_t end = masks_.size(), words = before_it_begins_.size();
  masks_.resize(end + words);
  const auto mask = std::span(masks_).subspan(end);
  if (!begins_after_) return state_->FillMask(mask);
  std::copy(before_it_begins_.begin(), before_it_begins_.end(), mask.begin());
  return {};
}

Status GrammarGuide::Take(TokenId token) {
  masks_.clear();
  if (begins_after_) {
    if (token == *begins_after_) begins_after_.reset();
    return AppendMask();
  }
  if (state_->terminated()) return Internal("an answer goes on behind the end of its grammar");
  if (!TRY(state_->Accept(token))) {
    return Internal("token {} was sampled, which the request's grammar forbids", Raw(token));
  }
  const Status status = state_->terminated() ? Status() : AppendMask();
  return status.code() == StatusCode::kNotFound ? NothingMayFollow() : status;
}

Status GrammarGuide::Foresee(std::span<const TokenId> drafts) {
  if (drafts.empty() || masks_.empty()) return {};
  const std::optional<TokenId> begins_after = begins_after_;
  int32_t accepted = 0;
  for (const TokenId draft : drafts) {
    if (begins_after_) {
      if (draft == *begins_after_) begins_after_.reset();
    } else {
      if (!TRY(state_->Accept(draft))) break;
      ++accepted;
      if (state_->terminated()) break;
    }
    const Status status = AppendMask();
    if (status.code() == StatusCode::kNotFound) {  // Take() says so, if the draft stands
      masks_.resize(masks_.size() - before_it_begins_.size());
      break;
    }
    TRY(status);
  }
  begins_after_ = begins_after;
  return accepted == 0 ? Status() : state_->Rollback(accepted);
}

}  // namespace fathom
