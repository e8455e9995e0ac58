// What is wrong with a folder, collected so that it is all said at once.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/status.h"

namespace fathom {

// Sentences, of which the first 10,000 are kept and the rest counted.
class Problems {
 public:
  template <class... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    if (count_++ < kMaxListed) listed_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void Add(const Status& status) { Add("{}", status.message()); }

  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  const std::vector<std::string>& listed() const { return listed_; }

  // "<subject>: 2 problems" and the sentences, a line each. REQUIRES: !empty().
  Status ToStatus(std::string_view subject) const;

 private:
  static constexpr size_t kMaxListed = 10'000;
  std::vector<std::string> listed_;
  size_t count_ = 0;
};

}  // namespace fathom
