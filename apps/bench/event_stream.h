// Server-sent events out of a body that arrives in pieces (WHATWG HTML, section 9.2).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fathom {

class EventStream {
 public:
  // Calls on_data(std::string_view) with each event's data that these bytes complete: its "data"
  // lines, joined by newlines. False once an event is longer than kMaxEventBytes.
  template <class OnData>
  [[nodiscard]] bool Push(std::string_view bytes, OnData&& on_data) {
    for (const char c : bytes) {
      if (c == '\n' || c == '\r') {
        if (!(c == '\n' && after_return_)) EndLine(on_data);
        after_return_ = c == '\r';
        continue;
      }
      after_return_ = false;
      if (line_.size() + data_.size() >= kMaxEventBytes) return false;
      line_ += c;
    }
    return true;
  }

  static constexpr size_t kMaxEventBytes = size_t{4} << 20;

 private:
  template <class OnData>
  void EndLine(OnData&& on_data) {
    std::string_view line = line_;
    if (line.empty()) {
      if (has_data_) on_data(std::string_view(data_));
      data_.clear();
      has_data_ = false;
    } else if (line.starts_with("data:")) {
      line.remove_prefix(line.starts_with("data: ") ? 6 : 5);
      if (has_data_) data_ += '\n';
      data_ += line;
      has_data_ = true;
    }
    line_.clear();
  }

  std::string line_, data_;
  bool has_data_ = false;
  bool after_return_ = false;  // a newline now belongs to the return before it
};

}  // namespace fathom
