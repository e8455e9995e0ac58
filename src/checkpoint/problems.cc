#include "checkpoint/problems.h"

namespace fathom {

Status Problems::ToStatus(std::string_view subject) const {
  if (count_ == 1) return InvalidArgument("{}: {}", subject, listed_[0]);
  std::string text = fmt::format("{}: {} problems", subject, count_);
  for (const std::string& problem : listed_) text += "\n  " + problem;
  if (count_ > listed_.size()) text += fmt::format("\n  and {} more", count_ - listed_.size());
  return Status(StatusCode::kInvalidArgument, std::move(text));
}

}  // namespace fathom
