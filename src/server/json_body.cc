#include "server/json_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/basic_parser_impl.hpp>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {

namespace json = boost::json;
using boost::system::error_code;

namespace {

constexpr size_t kWrittenAtOnce = size_t{16} << 10;  // likewise
constexpr size_t kParsedAtOnce = size_t{256} << 10;  // between two looks at the limits

// Claims what it hands out; what it refuses is a bad_alloc, as Boost.JSON wants it. Small values
// stand in chunks, each of which is freed with the last of them: who reads JSON from its beginning
// on, and frees what is read, gives memory back as he goes.
class Arena final : public json::memory_resource {
 public:
  explicit Arena(const WorkLimits& limits) : limits_(limits) {}
  ~Arena() override {
    if (chunk_ != nullptr) Give(chunk_, kChunkBytes, kChunkAlign);
  }

 private:
  // A little less than their distance, so that the allocator can put one behind the other.
  static constexpr size_t kChunkAlign = size_t{64} << 10, kChunkBytes = kChunkAlign - 64;
  static constexpr size_t kAlign = alignof(std::max_align_t), kLargeBytes = kChunkBytes / 8;
  struct alignas(kAlign) Chunk {
    size_t values = 0;
  };

  static size_t Rounded(size_t size) { return (size + kAlign - 1) / kAlign * kAlign; }

  void* do_allocate(size_t size, size_t) override {
    size = Rounded(size);
    if (size > kLargeBytes) return Get(size, kAlign);
    if (chunk_ == nullptr || size > kChunkBytes - used_) {
      chunk_ = new (Get(kChunkBytes, kChunkAlign)) Chunk;
      used_ = sizeof(Chunk);
    }
    ++chunk_->values;
    return reinterpret_cast<std::byte*>(chunk_) + std::exchange(used_, used_ + size);
  }
  void do_deallocate(void* memory, size_t size, size_t) override {
    size = Rounded(size);
    if (size > kLargeBytes) return Give(memory, size, kAlign);
    const size_t in_chunk = reinterpret_cast<uintptr_t>(memory) % kChunkAlign;
    auto* chunk = reinterpret_cast<Chunk*>(static_cast<std::byte*>(memory) - in_chunk);
    if (--chunk->values > 0) return;
    if (chunk == chunk_) {
      used_ = sizeof(Chunk);
    } else {
      Give(chunk, kChunkBytes, kChunkAlign);
    }
  }
  bool do_is_equal(const json::memory_resource& other) const noexcept override {
    return this == &other;
  }

  void* Get(size_t size, size_t align) {
    if (!limits_.Take(size).ok()) throw std::bad_alloc();  // NOLINT: MemoryError's
    return ::operator new(size, std::align_val_t(align));
  }
  void Give(void* memory, size_t size, size_t align) {
    ::operator delete(memory, std::align_val_t(align));
    if (limits_.memory != nullptr) limits_.memory->Shrink(size);
  }

  const WorkLimits limits_;
  Chunk* chunk_ = nullptr;  // the one that is filled
  size_t used_ = 0;         // of its bytes
};

using Sizes = std::vector<uint32_t, json::polymorphic_allocator<uint32_t>>;

// The index of the quote that ends the string that begins at `begin`, or the text's end.
size_t EndOfString(std::string_view text, size_t begin) {
  for (size_t at = begin + 1;; ++at) {
    at = text.find('"', at);
    if (at == text.npos) return text.size();
    size_t escapes = 0;
    while (text[at - 1 - escapes] == '\\') ++escapes;
    if (escapes % 2 == 0) return at;
  }
}

// How many members each list and object has, in the order in which they begin. What is no JSON has
// any sizes, and those up to its error are there.
void CountMembers(std::string_view text, Sizes* sizes) {
  std::array<size_t, kMaxJsonDepth> open;
  size_t depth = 0;
  bool empty = true;  // since the last bracket or comma
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '[':
      case '{':
        if (depth == open.size()) return;
        open[depth++] = sizes->size();
        sizes->push_back(0);
        empty = true;
        break;
      case ']':
      case '}':
        if (depth == 0) return;
        if (!empty) ++(*sizes)[open[depth - 1]];
        --depth;
        empty = false;
        break;
      case ',':
        if (depth == 0 || empty) return;
        ++(*sizes)[open[depth - 1]];
        empty = true;
        break;
      case ' ':
      case '\n':
      case '\r':
      case '\t': break;
      case '"': i = EndOfString(text, i); [[fallthrough]];
      default: empty = false;
    }
  }
}

// What Boost.JSON's parser finds, made into values where they are to stay: its own stack of values
// doubles when it is full, and is then copied, at up to 72 bytes a value of 24: token ids took 13
// times their bytes so. To count members first takes short messages a quarter more time.
class Handler {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);  // NOLINT: Boost's names
  static constexpr size_t max_array_size = static_cast<size_t>(-1);   // NOLINT
  static constexpr size_t max_key_size = static_cast<size_t>(-1);     // NOLINT
  static constexpr size_t max_string_size = static_cast<size_t>(-1);  // NOLINT
  using Text = json::string_view;

  // Not `strict`: of two members of a name the last one stays, and texts may hold U+0000.
  Handler(const json::storage_ptr& storage, bool strict)
      : strict_(strict), sizes_(storage.get()), key_(storage), parts_(storage), root_(storage) {}
  // REQUIRES: before the first value.
  void Count(std::string_view text) { CountMembers(text, &sizes_); }
  // No string that ends from now on has more than these bytes to come.
  void set_left(size_t bytes) { left_ = bytes; }
  json::value Release() { return std::move(root_); }
  bool names_a_key_twice() const { return names_a_key_twice_; }
  bool met_null_character() const { return met_null_character_; }

  bool on_document_begin(error_code&) { return true; }  // NOLINT: Boost's names, to the end
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code& error) {
    json::value* value = Place(error);
    if (value == nullptr) return false;
    value->emplace_object().reserve(NextSize());
    open_.push_back(value);
    return true;
  }
  bool on_object_end(size_t, error_code&) { return Close(); }
  bool on_array_begin(error_code& error) {
    json::value* value = Place(error);
    if (value == nullptr) return false;
    value->emplace_array().reserve(NextSize());
    open_.push_back(value);
    return true;
  }
  bool on_array_end(size_t, error_code&) { return Close(); }
  bool on_key_part(Text part, size_t, error_code& error) {
    Append(part, &key_);
    return Plain(part, error);
  }
  bool on_key(Text part, size_t, error_code& error) {
    Append(part, &key_);
    return Plain(part, error);
  }
  bool on_string_part(Text part, size_t, error_code& error) {
    Append(part, &parts_);
    return Plain(part, error);
  }
  bool on_string(Text part, size_t, error_code& error) {
    json::value* value = Place(error);
    if (value == nullptr) return false;
    json::string& string = value->emplace_string();
    if (parts_.empty()) {
      string.assign(part);
    } else {
      Append(part, &parts_);
      if (parts_.size() > kLongBytes && parts_.capacity() - parts_.size() < parts_.size() / 8) {
        string = std::move(parts_);
      } else {
        string.assign(Text(parts_));
      }
      Empty(&parts_);
    }
    return Plain(part, error);
  }
  bool on_number_part(Text, error_code&) { return true; }
  bool on_int64(int64_t number, Text, error_code& error) { return Set(number, error); }
  bool on_uint64(uint64_t number, Text, error_code& error) { return Set(number, error); }
  bool on_double(double number, Text, error_code& error) { return Set(number, error); }
  bool on_bool(bool value, error_code& error) { return Set(value, error); }
  bool on_null(error_code& error) { return Set(nullptr, error); }
  bool on_comment_part(Text, error_code&) { return true; }
  bool on_comment(Text, error_code&) { return true; }

 private:
  static constexpr size_t kLongBytes = size_t{16} << 10;

  // Where the next value is to stand; null if its key stands there already.
  json::value* Place(error_code& error) {
    if (open_.empty()) return &root_;
    if (json::array* array = open_.back()->if_array()) return &array->emplace_back(nullptr);
    const auto [member, added] = open_.back()->get_object().emplace(key_, nullptr);
    Empty(&key_);
    if (added || !strict_) return &member->value();
    names_a_key_twice_ = true;
    error = make_error_code(boost::system::errc::invalid_argument);
    return nullptr;
  }
  template <class T>
  bool Set(T scalar, error_code& error) {
    json::value* value = Place(error);
    if (value != nullptr) *value = scalar;
    return value != nullptr;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  size_t NextSize() { return next_ < sizes_.size() ? sizes_[next_++] : 0; }

  // A long text is given all the room that is left, so that it is not copied as it grows, and keeps
  // it if that was about its length.
  void Append(Text part, json::string* text) {
    const size_t size = text->size() + part.size();
    if (size > text->capacity()) {  // a string that has room itself takes twice its room at least
      json::string grown(text->storage());
      grown.reserve(size > kLongBytes ? size + left_ : 2 * size);
      grown.assign(*text);
      *text = std::move(grown);
    }
    text->append(part);
  }
  static void Empty(json::string* text) {
    text->clear();
    if (text->capacity() > kLongBytes) text->shrink_to_fit();
  }
  bool Plain(Text text, error_code& error) {
    if (!strict_ || std::memchr(text.data(), 0, text.size()) == nullptr) return true;
    met_null_character_ = true;
    error = make_error_code(boost::system::errc::illegal_byte_sequence);
    return false;
  }

  const bool strict_;
  Sizes sizes_;
  size_t next_ = 0;
  json::string key_, parts_;        // of a key, and of a text that comes in parts
  std::vector<json::value*> open_;  // lists and objects, the outermost first
  json::value root_;
  size_t left_ = 0;
  bool names_a_key_twice_ = false, met_null_character_ = false;
};

ApiError LimitError(const Status& status) {
  if (status.code() != StatusCode::kResourceExhausted) return EngineError(status);
  return {.status = 413, .message = status.message()};
}

std::string WhatIsWrong(error_code error, const Handler& handler, size_t at) {
  if (error == json::error::too_deep) {
    return fmt::format("the body's JSON is nested deeper than {} levels", kMaxJsonDepth);
  }
  if (handler.met_null_character()) {
    return "the body's JSON holds the character \\u0000, which no text of a request may";
  }
  if (handler.names_a_key_twice()) return "the body's JSON has an object that names a key twice";
  return fmt::format("the body is not JSON: {} at byte {}",
                     error ? error.message() : "there is more after its end", at);
}

}  // namespace

ApiError MemoryError(const WorkLimits& limits) {
  if (limits.memory != nullptr && !limits.memory->failure().ok()) {
    return LimitError(limits.memory->failure());
  }
  return EngineError(Unavailable("The system has no memory left: try again in a moment."));
}

json::value ParseAgain(std::string_view text, const json::storage_ptr& storage) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::basic_parser<Handler> parser(options, storage, /*strict=*/false);
  parser.handler().Count(text);
  error_code error;
  parser.write_some(false, text.data(), text.size(), error);
  CHECK(!error, "JSON that was read before: {}", error.message());
  return parser.handler().Release();
}

std::optional<ApiError> AppendJson(const json::value& value, const WorkLimits& limits,
                                   std::string* text) {
  json::serializer serializer;
  serializer.reset(&value);
  while (!serializer.done()) {
    if (const Status status = limits.Check(); !status.ok()) return LimitError(status);
    char part[kWrittenAtOnce];
    text->append(serializer.read(part, sizeof(part)));
  }
  return std::nullopt;
}

std::optional<ApiError> JsonBody::Parse(std::string text, const WorkLimits& limits,
                                        JsonBody* body) {
  body->object_.reset();
  body->storage_ = json::make_shared_resource<Arena>(limits);
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  try {
    // The body owns the storage: values that owned it too would take half as long again.
    json::basic_parser<Handler> parser(options, json::storage_ptr(body->storage_.get()),
                                       /*strict=*/true);
    parser.handler().Count(text);
    error_code error;
    size_t read = 0;
    do {
      if (const Status status = limits.Check(); !status.ok()) return LimitError(status);
      const size_t part = std::min(kParsedAtOnce, text.size() - read);
      const bool more = read + part < text.size();
      parser.handler().set_left(text.size() - read);
      const size_t parsed = parser.write_some(more, text.data() + read, part, error);
      read += parsed;
      if (error || parsed < part)
        return BadParameter("", WhatIsWrong(error, parser.handler(), read));
    } while (read < text.size());
    json::value value = parser.handler().Release();
    if (!value.is_object()) return BadParameter("", "the body must be a JSON object");
    body->object_.emplace(std::move(value.get_object()));
    if (limits.memory != nullptr) limits.memory->Shrink(text.size());
  } catch (const std::bad_alloc&) {
    return MemoryError(limits);
  }
  return std::nullopt;
}

}  // namespace fathom
