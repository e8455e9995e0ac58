#include "server/json_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace fathom {

namespace json = boost::json;
using boost::system::error_code;

namespace {

constexpr size_t kParsedAtOnce = size_t{256} << 10;  // between two looks at the limits

// Claims what it hands out. What it refuses is a bad_alloc, as Boost.JSON wants it.
class ClaimedMemory : public json::memory_resource {
 public:
  explicit ClaimedMemory(const WorkLimits& limits) : limits_(limits) {}

 protected:
  void* Get(size_t size, size_t align) {
    if (!limits_.Take(size).ok()) throw std::bad_alloc();  // NOLINT: MemoryError's
    return ::operator new(size, std::align_val_t(align));
  }
  void Give(void* memory, size_t size, size_t align) {
    ::operator delete(memory, std::align_val_t(align));
    if (limits_.memory != nullptr) limits_.memory->Shrink(size);
  }

 private:
  void* do_allocate(size_t size, size_t align) override { return Get(size, align); }
  void do_deallocate(void* memory, size_t size, size_t align) override {
    Give(memory, size, align);
  }
  bool do_is_equal(const json::memory_resource& other) const noexcept override {
    return this == &other;
  }

  const WorkLimits limits_;
};

// Gives nothing back before the whole, which counts until its request's claim is reset: the
// allocator has what is freed, and the system only once it was trimmed.
class Arena final : public ClaimedMemory {
 public:
  using ClaimedMemory::ClaimedMemory;
  ~Arena() override {
    for (const Chunk& chunk : chunks_) ::operator delete(chunk.memory, std::align_val_t(kAlign));
  }

 private:
  static constexpr size_t kChunkBytes = size_t{64} << 10, kAlign = alignof(std::max_align_t);
  struct Chunk {
    void* memory;
    size_t size;
  };

  void* do_allocate(size_t size, size_t) override {
    size = (size + kAlign - 1) / kAlign * kAlign;
    if (size > kChunkBytes / 8) return NewChunk(size);
    if (size > left_) {
      next_ = static_cast<std::byte*>(NewChunk(kChunkBytes));
      left_ = kChunkBytes;
    }
    left_ -= size;
    return std::exchange(next_, next_ + size);
  }
  void do_deallocate(void*, size_t, size_t) override {}

  void* NewChunk(size_t size) {
    Chunk& chunk = chunks_.emplace_back();  // which may throw, and would lose what is there
    chunk = {Get(size, kAlign), size};
    return chunk.memory;
  }

  std::vector<Chunk> chunks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

// What Boost.JSON's parser finds, made into a value; keys are counted, texts looked at.
class Handler {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);  // NOLINT: Boost's names
  static constexpr size_t max_array_size = static_cast<size_t>(-1);   // NOLINT
  static constexpr size_t max_key_size = static_cast<size_t>(-1);     // NOLINT
  static constexpr size_t max_string_size = static_cast<size_t>(-1);  // NOLINT
  using Text = json::string_view;

  explicit Handler(json::storage_ptr scratch) : stack_(std::move(scratch)) {}
  void Reset(const json::storage_ptr& storage) { stack_.reset(storage); }
  json::value Release() { return stack_.release(); }
  size_t keys() const { return keys_; }
  bool met_null_character() const { return met_null_character_; }

  bool on_document_begin(error_code&) { return true; }  // NOLINT: Boost's names, to the end
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) { return true; }
  bool on_object_end(size_t size, error_code&) {
    keys_ += size;
    stack_.push_object(size);
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(size_t size, error_code&) {
    stack_.push_array(size);
    return true;
  }
  bool on_key_part(Text part, size_t, error_code& error) {
    stack_.push_chars(part);
    return Plain(part, error);
  }
  bool on_key(Text part, size_t, error_code& error) {
    stack_.push_key(part);
    return Plain(part, error);
  }
  bool on_string_part(Text part, size_t, error_code& error) {
    stack_.push_chars(part);
    return Plain(part, error);
  }
  bool on_string(Text part, size_t, error_code& error) {
    stack_.push_string(part);
    return Plain(part, error);
  }
  bool on_number_part(Text, error_code&) { return true; }
  bool on_int64(int64_t number, Text, error_code&) {
    stack_.push_int64(number);
    return true;
  }
  bool on_uint64(uint64_t number, Text, error_code&) {
    stack_.push_uint64(number);
    return true;
  }
  bool on_double(double number, Text, error_code&) {
    stack_.push_double(number);
    return true;
  }
  bool on_bool(bool value, error_code&) {
    stack_.push_bool(value);
    return true;
  }
  bool on_null(error_code&) {
    stack_.push_null();
    return true;
  }
  bool on_comment_part(Text, error_code&) { return true; }
  bool on_comment(Text, error_code&) { return true; }

 private:
  bool Plain(Text text, error_code& error) {
    if (std::memchr(text.data(), 0, text.size()) == nullptr) return true;
    met_null_character_ = true;
    error = make_error_code(boost::system::errc::illegal_byte_sequence);
    return false;
  }

  json::value_stack stack_;
  size_t keys_ = 0;
  bool met_null_character_ = false;
};

size_t CountKeys(const json::value& value) {
  size_t keys = 0;
  if (const json::object* object = value.if_object()) {
    keys = object->size();
    for (const auto& [key, member] : *object) keys += CountKeys(member);
  } else if (const json::array* array = value.if_array()) {
    for (const json::value& item : *array) keys += CountKeys(item);
  }
  return keys;
}

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

std::optional<ApiError> JsonBody::Parse(std::string_view text, const WorkLimits& limits,
                                        JsonBody* body) {
  body->object_.reset();
  body->storage_ = json::make_shared_resource<Arena>(limits);
  ClaimedMemory scratch(limits);
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  try {
    json::basic_parser<Handler> parser(options, json::storage_ptr(&scratch));
    parser.handler().Reset(body->storage_);
    error_code error;
    size_t read = 0;
    do {
      if (const Status status = limits.Check(); !status.ok()) return LimitError(status);
      const size_t part = std::min(kParsedAtOnce, text.size() - read);
      const bool more = read + part < text.size();
      const size_t parsed = parser.write_some(more, text.data() + read, part, error);
      read += parsed;
      if (error || parsed < part)
        return BadParameter("", WhatIsWrong(error, parser.handler(), read));
    } while (read < text.size());
    json::value value = parser.handler().Release();
    if (!value.is_object()) return BadParameter("", "the body must be a JSON object");
    if (CountKeys(value) != parser.handler().keys()) {
      return BadParameter("", "the body's JSON has an object that names a key twice");
    }
    body->object_.emplace(std::move(value.get_object()));
  } catch (const std::bad_alloc&) {
    return MemoryError(limits);
  }
  return std::nullopt;
}

}  // namespace fathom
