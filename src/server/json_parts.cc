#include "server/json_parts.h"

#include "base/check.h"

namespace fathom {

namespace json = boost::json;

void JsonParts::Add(const json::object& part) {
  const bool first = members_.empty();
  CHECK(first || members_.size() == part.size());
  size_t i = 0;
  for (const auto& [key, value] : part) {
    if (first) members_.push_back({json::serialize(key), value.is_array(), ""});
    Member& member = members_[i++];
    if (!member.array) {
      if (first) member.text = json::serialize(value);
      continue;
    }
    const std::string text = json::serialize(value);
    if (text.size() == 2) continue;
    if (!member.text.empty()) member.text += ',';
    member.text.append(text, 1, text.size() - 2);
  }
}

std::string JsonParts::Text() const {
  std::string text = "{";
  for (const Member& member : members_) {
    if (text.size() > 1) text += ',';
    text.append(member.key).append(member.array ? ":[" : ":").append(member.text);
    if (member.array) text += ']';
  }
  return text += '}';
}

}  // namespace fathom
