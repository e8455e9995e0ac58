#include "tokenizer/pre_tokenizer.h"

namespace fathom {
namespace {

struct Run {
  size_t begin, end;
  bool matched;
};

// `size` bytes as runs that are matched or not, in order.
void RunsOf(const std::vector<Regex::Match>& matches, size_t size, bool inverted,
            std::vector<Run>* runs) {
  runs->clear();
  size_t at = 0;
  for (const Regex::Match& match : matches) {
    if (at != match.begin) runs->push_back({at, match.begin, inverted});
    runs->push_back({match.begin, match.end, !inverted});
    at = match.end;
  }
  if (at != size) runs->push_back({at, size, inverted});
}

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

void AppendPieces(std::string_view text, const std::vector<Run>& runs, SplitBehavior behavior,
                  std::vector<std::string_view>* pieces) {
  for (size_t i = 0; i < runs.size();) {
    const size_t first = i++;
    while (i < runs.size() && Joins(behavior, runs[i - 1].matched, runs[i].matched)) ++i;
    if (behavior == SplitBehavior::kRemoved && runs[first].matched) continue;
    const size_t begin = runs[first].begin, end = runs[i - 1].end;
    if (begin < end) pieces->push_back(text.substr(begin, end - begin));
  }
}

}  // namespace

void PreTokenizer::AddSplit(Regex regex, SplitBehavior behavior, bool inverted) {
  steps_.push_back({std::move(regex), behavior, inverted});
}

Status PreTokenizer::Split(std::string_view text, Words* words, const WorkLimits& limits) const {
  words->pieces.clear();
  words->prefixed.clear();
  if (!text.empty()) words->pieces.push_back(text);
  std::vector<std::string_view> before;
  std::vector<Regex::Match> matches;
  std::vector<Run> runs;
  for (const Step& step : steps_) {
    before.swap(words->pieces);
    words->pieces.clear();
    for (const std::string_view piece : before) {
      if (step.regex) {
        TRY(step.regex->FindAll(piece, &matches, limits));
        RunsOf(matches, piece.size(), step.inverted, &runs);
        AppendPieces(piece, runs, step.behavior, &words->pieces);
      } else if (piece.starts_with(' ')) {
        words->pieces.push_back(piece);
      } else {
        words->pieces.push_back(words->prefixed.emplace_back(" ").append(piece));
      }
    }
  }
  return {};
}

}  // namespace fathom
