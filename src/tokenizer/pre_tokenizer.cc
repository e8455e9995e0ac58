#include "tokenizer/pre_tokenizer.h"

#include <utility>

namespace fathom {
namespace {

// Part of a piece: a match, or what lies between two.
struct Run {
  size_t begin, end;
  bool matched;
};

// Whether a run joins the piece of the run before it.
bool Joins(SplitBehavior behavior, bool before_matched, bool matched) {
  switch (behavior) {
    case SplitBehavior::kContiguous: return matched == before_matched;
    case SplitBehavior::kMergedWithPrevious: return matched && !before_matched;
    case SplitBehavior::kMergedWithNext: return !matched && before_matched;
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved: return false;
  }
  return false;
}

}  // namespace

void PreTokenizer::AddSplit(Regex regex, SplitBehavior behavior, bool inverted) {
  steps_.push_back({std::move(regex), behavior, inverted});
}

// One step at one piece.
class PreTokenizer::Words::Cutter {
 public:
  Cutter(const Step& step, const WorkLimits& limits) : step_(&step), limits_(limits) {
    if (step.regex) search_.emplace(*step.regex, limits);
  }

  size_t claimed() const { return claimed_; }

  // REQUIRES: `piece` is not empty.
  void Begin(std::string_view piece) {
    piece_ = piece;
    if (!search_) return;
    search_->Begin(piece);
    at_ = 0;
    has_match_ = search_->Next(&match_);
    has_run_ = NextRun();
  }

  // The next part, never empty; false at the end, and after an error.
  bool Next(std::string_view* part) {
    if (!search_) return Prefixed(part);
    while (has_run_) {
      const Run first = run_;
      Run last;
      do {
        last = run_;
        has_run_ = NextRun();
      } while (has_run_ && Joins(step_->behavior, last.matched, run_.matched));
      if (step_->behavior == SplitBehavior::kRemoved && first.matched) continue;
      *part = piece_.substr(first.begin, last.end - first.begin);
      if (!part->empty()) return status().ok();
    }
    return false;
  }

  const Status& status() const { return search_ ? search_->status() : status_; }

 private:
  // Reads the next run into run_; false at the end.
  bool NextRun() {
    const size_t end = has_match_ ? match_.begin : piece_.size();
    if (at_ != end) {
      run_ = {at_, end, step_->inverted};
      at_ = end;
      return true;
    }
    if (!has_match_) return false;
    run_ = {match_.begin, match_.end, !step_->inverted};
    at_ = match_.end;
    has_match_ = search_->Next(&match_);
    return true;
  }

  bool Prefixed(std::string_view* part) {
    *part = std::exchange(piece_, {});
    if (part->empty()) return false;
    if (part->starts_with(' ')) return true;
    if (part->size() >= prefixed_.capacity()) {
      const size_t bytes = part->size() + 1;
      status_ = limits_.Take(bytes);
      if (!status_.ok()) return false;
      claimed_ += bytes;
      prefixed_.reserve(bytes);
    }
    *part = prefixed_.assign(1, ' ').append(*part);
    return true;
  }

  const Step* step_;
  const WorkLimits limits_;
  size_t claimed_ = 0;                   // of the limits' memory
  std::optional<Regex::Search> search_;  // none: the prefix space
  std::string_view piece_;
  size_t at_ = 0;       // where the next run begins
  Regex::Match match_;  // the first that is not behind it, if there is one
  bool has_match_ = false;
  Run run_;  // not handed out yet, if there is one
  bool has_run_ = false;
  std::string prefixed_;
  Status status_;
};

PreTokenizer::Words::Words(const PreTokenizer& pre_tokenizer, const WorkLimits& limits)
    : limits_(limits) {
  cutters_.reserve(pre_tokenizer.steps_.size());
  for (const Step& step : pre_tokenizer.steps_) cutters_.emplace_back(step, limits);
}
PreTokenizer::Words::~Words() {
  for (const Cutter& cutter : cutters_) {
    if (limits_.memory != nullptr) limits_.memory->Shrink(cutter.claimed());
  }
}

void PreTokenizer::Words::Begin(std::string_view text) {
  text_ = text;
  depth_ = 0;
  if (text.empty() || cutters_.empty()) return;
  depth_ = 1;
  cutters_[0].Begin(text);
}

bool PreTokenizer::Words::Next(std::string_view* word) {
  while (depth_ > 0) {
    Cutter& cutter = cutters_[depth_ - 1];
    if (cutter.Next(word)) {
      if (depth_ == cutters_.size()) return true;
      cutters_[depth_++].Begin(*word);
    } else if (cutter.status().ok()) {
      --depth_;
    } else {
      status_ = cutter.status();
      return false;
    }
  }
  *word = std::exchange(text_, {});
  return cutters_.empty() && !word->empty();
}

}  // namespace fathom
