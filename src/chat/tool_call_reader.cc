#include "chat/tool_call_reader.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace fathom {
namespace {

constexpr std::string_view kWhitespace = " \t\n\v\f\r";
constexpr std::string_view kFence = "```";
constexpr size_t kMaxHeld = 64;  // whitespace before the end of a fence is shorter

bool IsSpace(char c) {
  return kWhitespace.find(c) != std::string_view::npos;
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhitespace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhitespace) + 1 - begin);
}

}  // namespace

void ToolCallReader::Begin() {
  state_ = State::kBeforeSeparator;
  head_.clear();
  name_.clear();
  held_.clear();
}

bool ToolCallReader::Separator(std::string_view separator) {
  if (state_ != State::kBeforeSeparator) return false;
  if (form_ == ToolCallForm::kNameFirst) {
    name_ = Trim(head_);
    if (name_.empty()) return false;
    state_ = State::kArguments;
  } else {
    head_ += separator;
    state_ = State::kName;
  }
  return true;
}

void ToolCallReader::Push(std::string_view text, std::string* arguments) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (state_ == State::kArguments) {
      *arguments += text.substr(i);
      return;
    }
    PushByte(text[i], arguments);
  }
}

void ToolCallReader::PushByte(char c, std::string* arguments) {
  switch (state_) {
    case State::kBeforeSeparator: head_ += c; return;
    case State::kName:
      if (head_.size() > kMaxHeadBytes) {  // no name any more, whatever follows in this piece
        head_ += c;
        return;
      }
      // A model may forget the line break; no name has these characters.
      if ((c == '\n' || c == '`' || c == '{') && !name_.empty()) {
        name_ = Trim(name_);
        state_ = State::kBeforeFence;
        return PushByte(c, arguments);
      }
      head_ += c;
      if (!name_.empty() || !IsSpace(c)) name_ += c;
      return;
    case State::kBeforeFence:
      if (IsSpace(c) && held_.empty()) return;
      if (c == '`') {
        held_ += c;
        if (held_ != kFence) return;
        held_.clear();
        state_ = State::kFenceLine;
        return;
      }
      *arguments += std::exchange(held_, {});
      *arguments += c;
      state_ = State::kArguments;
      return;
    case State::kFenceLine:
      if (std::isalnum(static_cast<unsigned char>(c)) || (IsSpace(c) && c != '\n')) return;
      state_ = State::kInFence;
      if (c != '\n') PushInFence(c, arguments);
      return;
    case State::kInFence: return PushInFence(c, arguments);
    case State::kArguments: *arguments += c; return;
  }
}

// `held_` is whitespace, up to three "`", and whitespace again.
void ToolCallReader::PushInFence(char c, std::string* arguments) {
  const size_t ticks = static_cast<size_t>(std::count(held_.begin(), held_.end(), '`'));
  const bool closed = ticks == kFence.size();
  const bool goes_on = IsSpace(c) ? ticks == 0 || closed
                                  : c == '`' && !closed && (ticks == 0 || held_.back() == '`');
  if (!goes_on || held_.size() == kMaxHeld) *arguments += std::exchange(held_, {});
  if (IsSpace(c) || c == '`') {
    held_ += c;
  } else {
    *arguments += c;
  }
}

void ToolCallReader::End(std::string* arguments) {
  if (state_ == State::kName && !name_.empty() && head_.size() <= kMaxHeadBytes) {
    name_ = Trim(name_);
    state_ = State::kBeforeFence;
  }
  const bool drop =
      state_ == State::kInFence && (held_.find(kFence) != std::string::npos || Trim(held_).empty());
  if (!drop) *arguments += held_;
  held_.clear();
}

}  // namespace fathom
