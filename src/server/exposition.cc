#include "server/exposition.h"

#include <prometheus/text_serializer.h>

#include <string_view>

namespace fathom {

std::string Exposition(const prometheus::Registry& registry) {
  // A label's text can hold no such thing: its quotes are escaped.
  constexpr std::string_view kBound = ",le=\"";
  const std::string text = prometheus::TextSerializer().Serialize(registry.Collect());
  std::string exposition;
  size_t done = 0;
  for (size_t at = text.find(kBound); at != text.npos; at = text.find(kBound, done)) {
    const size_t end = text.find('"', at + kBound.size());
    const size_t no_digit = text.find_first_not_of("0123456789", at + kBound.size());
    exposition.append(text, done, end - done);
    if (no_digit == end) exposition += ".0";
    done = end;
  }
  return exposition.append(text, done);
}

}  // namespace fathom
