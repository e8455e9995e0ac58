#include "checkpoint/problems.h"

#include <algorithm>

namespace fathom {

Status Problems::ToStatus(std::string_view subject) const {
  if (count_ == 1) return InvalidArgument("{}: {}", subject, listed_[0]);
  std::string text = fmt::format("{}: {} problems", subject, count_);
  for (const std::string& problem : listed_) text += "\n  " + problem;
  if (count_ > listed_.size()) text += fmt::format("\n  and {} more", count_ - listed_.size());
  return Status(StatusCode::kInvalidArgument, std::move(text));
}

std::string Printable(std::string_view name) {
  constexpr size_t kMaxBytes = 200;
  std::string text(name.substr(0, kMaxBytes));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  if (name.size() > kMaxBytes) text += "...";
  return text;
}

}  // namespace fathom
