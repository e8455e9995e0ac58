#include "chat/jinja/from_json.h"

#include <utility>
#include <vector>

namespace fathom::jinja {

namespace json = boost::json;

namespace {

constexpr size_t kClaimedAtOnce = size_t{16} << 10;
constexpr size_t kShortBytes = 32, kMaxShortOnes = 1024;
constexpr size_t kAllocatedBytes = 16;                 // that the allocator adds
constexpr size_t kSharedBytes = 16 + kAllocatedBytes;  // that make_shared adds to a value
// A string's own, its bytes', and the one span that it has.
constexpr size_t kTextBytes =
    sizeof(SpannedText) + kSharedBytes + sizeof(SpannedText::Span) + 2 * kAllocatedBytes;
constexpr size_t kIndexedBytes = 128;  // of a key in a dict that has an index

}  // namespace

FromJson::~FromJson() {
  if (limits_.memory != nullptr) limits_.memory->Shrink(taken_);
}

Status FromJson::Take(size_t bytes) {
  pending_ += bytes;
  if (pending_ < kClaimedAtOnce) return {};
  TRY(limits_.Check());
  TRY(limits_.Take(pending_));
  taken_ += std::exchange(pending_, 0);
  return {};
}

Result<Value> FromJson::String(std::string_view text) {
  const bool is_short = text.size() <= kShortBytes;
  if (is_short) {
    if (const auto known = short_ones_.find(text); known != short_ones_.end()) return known->second;
  }
  TRY(Take(kTextBytes + text.size()));
  Value value = Value::Str(text, trusted_);
  if (is_short && short_ones_.size() < kMaxShortOnes)
    short_ones_.emplace(value.AsText()->text(), value);
  return value;
}

Result<Value> FromJson::Object(json::object& object, int depth) {
  Dict dict;
  const bool indexed = object.size() > NameIndex::kFew;
  TRY(Take(sizeof(Dict) + kSharedBytes + kAllocatedBytes));
  dict.Reserve(object.size());
  for (json::key_value_pair& entry : object) {
    TRY(Take(sizeof(Value) + (indexed ? kIndexedBytes + entry.key().size() : 0)));
    Value value = TRY(Convert(entry.value(), depth + 1));
    TRY(dict.Set(TRY(String(entry.key())), std::move(value)));
  }
  return MakeDict(std::move(dict));
}

Result<Value> FromJson::Array(json::array& array, int depth) {
  TRY(Take(sizeof(List) + kSharedBytes + kAllocatedBytes));
  std::vector<Value> items;
  items.reserve(array.size());
  for (json::value& item : array) items.push_back(TRY(Convert(item, depth + 1)));
  return MakeList(std::move(items));
}

Result<Value> FromJson::Variable(std::string_view name, json::value& value) {
  TRY(Take(sizeof(Value) + kIndexedBytes + 2 * name.size()));
  return Convert(value, 1);
}

Result<Value> FromJson::Convert(json::value& value, int depth) {
  if (depth > kMaxValueDepth) {
    return InvalidArgument("the messages nest more than {} deep", kMaxValueDepth);
  }
  TRY(Take(sizeof(Value)));
  json::value read = std::move(value);
  switch (read.kind()) {
    case json::kind::null: return Value(None{});
    case json::kind::bool_: return Value(read.get_bool());
    case json::kind::int64: return Value(static_cast<Int>(read.get_int64()));
    case json::kind::uint64: return Value(static_cast<Int>(read.get_uint64()));
    case json::kind::double_: return Value(read.get_double());
    case json::kind::string: return String(read.get_string());
    case json::kind::array: return Array(read.get_array(), depth);
    case json::kind::object: return Object(read.get_object(), depth);
  }
  CHECK(false, "JSON kind {}", static_cast<int>(read.kind()));
}

}  // namespace fathom::jinja
