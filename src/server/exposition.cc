#include "server/exposition.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <string_view>

namespace fathom {

std::string Exposition(const prometheus::Registry& registry) {
  constexpr std::string_view kBound = "le=\"";
  const std::string text = prometheus::TextSerializer().Serialize(registry.Collect());
  std::string exposition;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    // A bucket's bound is its line's last label; other labels' quotes are escaped, but for the
    // last.
    const size_t at = line.rfind(kBound), number = at == line.npos ? 0 : at + kBound.size();
    const size_t no_digit = line.find_first_not_of("0123456789", number);
    exposition += line;
    if (number > 0 && no_digit > number && line.substr(no_digit).starts_with("\"}")) {
      exposition.insert(exposition.size() - (line.size() - no_digit), ".0");
    }
    begin = end;
  }
  return exposition;
}

}  // namespace fathom
