// What stands between the begin and the end of one tool call, into its name and arguments.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

// How a model writes a call between its begin and end markers.
enum class ToolCallForm {
  kNameFirst,  // V3.1: name<sep>arguments
  kFenced,     // V3, V3-0324, R1, R1-0528: function<sep>name, a line break, and the arguments in a
               // fence of ```json
};

// Of one call after the other. Reads byte by byte, so that nothing depends on how text is cut.
class ToolCallReader {
 public:
  static constexpr size_t kMaxHeadBytes = 256;  // up to the end of the name

  explicit ToolCallReader(ToolCallForm form) : form_(form) {}

  void Begin();
  // A separator has come. False if none belongs here. REQUIRES: !named().
  bool Separator(std::string_view separator);
  // What may be shown of the arguments is appended to `*arguments`.
  void Push(std::string_view text, std::string* arguments);
  // The call has ended: appends what was held back as the possible end of a fence, and was none.
  // Where the name has come and nothing else, this is when it is whole.
  void End(std::string* arguments);

  bool named() const { return state_ >= State::kBeforeFence; }
  const std::string& name() const { return name_; }
  // As it was written so far, if the name is not whole; over kMaxHeadBytes it never will be.
  const std::string& head() const { return head_; }

 private:
  enum class State {
    kBeforeSeparator,
    kName,         // fenced: after the separator
    kBeforeFence,  // fenced: the name is whole; nothing but whitespace or "`" since
    kFenceLine,    // fenced: "```" has come, its line has not ended
    kInFence,
    kArguments,  // as they stand
  };

  void PushByte(char c, std::string* arguments);
  void PushInFence(char c, std::string* arguments);

  const ToolCallForm form_;
  State state_ = State::kBeforeSeparator;
  std::string head_, name_;
  std::string held_;  // what may become a fence, or be the whitespace around it
};

}  // namespace fathom
