// Messages between the host side and the device side, in msgpack.
#pragma once

#include <msgpuck.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/attention_form.h"
#include "base/ids.h"
#include "base/status.h"

namespace fathom {

// Values are unsigned numbers (a float is its bits), booleans, and arrays of values.
class MessageWriter {
 public:
  void Header(size_t fields) { Array(fields); }
  void operator()(bool value) { out_.append(buffer_, mp_encode_bool(buffer_, value)); }
  void operator()(uint64_t value) { out_.append(buffer_, mp_encode_uint(buffer_, value)); }
  void operator()(uint32_t value) { (*this)(uint64_t{value}); }
  // REQUIRES: not negative, but for `least`.
  void operator()(int32_t value, int32_t least = 0) {
    (*this)(static_cast<uint64_t>(int64_t{value} - least));
  }
  void operator()(float value) { (*this)(uint64_t{std::bit_cast<uint32_t>(value)}); }
  template <class Id>
  requires std::is_enum_v<Id>
  void operator()(Id id) { (*this)(Raw(id)); }
  void operator()(AttentionForm form) { (*this)(form == AttentionForm::kExpanded); }
  template <class A, class B>
  void operator()(const std::pair<A, B>& pair) {
    Array(2);
    (*this)(pair.first);
    (*this)(pair.second);
  }
  template <class T>
  void operator()(const std::vector<T>& values, int64_t = 0) {
    Array(values.size());
    for (const T& value : values) Put(value);
  }
  void operator()(const std::string& text) {
    out_.append(buffer_, mp_encode_strl(buffer_, static_cast<uint32_t>(text.size())));
    out_ += text;
  }
  void Binary(std::span<const std::byte> bytes) {
    out_.append(buffer_, mp_encode_binl(buffer_, static_cast<uint32_t>(bytes.size())));
    out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string Take() { return std::move(out_); }

 private:
  // A record by its Fields(), anything else by one of the above.
  template <class T>
  void Put(const T& value) {
    if constexpr (requires { Fields(*this, value); }) {
      Fields(*this, value);
    } else {
      (*this)(value);
    }
  }
  void Array(size_t size) { out_.append(buffer_, mp_encode_array(buffer_, size)); }

  char buffer_[16];  // no scalar or header takes more than 9 bytes
  std::string out_;
};

// Stops at the first value that is not what it must be: what is read from there on is left alone.
// The mp_check_ functions tell whether a value runs past the end, the mp_decode_ functions trust.
class MessageReader {
 public:
  // `what`: the message, for errors.
  MessageReader(std::string_view what, std::string_view bytes)
      : what_(what), at_(bytes.data()), end_(at_ + bytes.size()) {}

  void Header(size_t fields) {
    if (Array(kMaxInt32) != fields) Fail(DataLoss("{}: a record of other fields", what_));
  }
  // The elements of an array that follow, at most so many; 0 if there is none.
  uint32_t Count(int64_t most) { return Array(most); }
  void operator()(bool& value) {
    if (!Is(MP_BOOL)) return Fail(DataLoss("{}: a boolean was expected", what_));
    value = mp_decode_bool(&at_);
  }
  void operator()(uint64_t& value) { value = Uint(std::numeric_limits<uint64_t>::max()); }
  void operator()(uint32_t& value) {
    value = static_cast<uint32_t>(Uint(std::numeric_limits<uint32_t>::max()));
  }
  void operator()(int32_t& value, int32_t least = 0) {
    value = static_cast<int32_t>(static_cast<int64_t>(Uint(kMaxInt32)) + least);
  }
  void operator()(float& value) {
    value = std::bit_cast<float>(static_cast<uint32_t>(Uint(std::numeric_limits<uint32_t>::max())));
    if (!std::isfinite(value)) Fail(DataLoss("{}: a parameter that is no number", what_));
  }
  template <class Id>
  requires std::is_enum_v<Id>
  void operator()(Id& id) {
    std::underlying_type_t<Id> raw = 0;
    (*this)(raw);
    id = Id{raw};
  }
  void operator()(std::string& text) {
    if (!Is(MP_STR) || end_ - at_ < 2 || mp_check_strl(at_, end_) > 0) {
      return Fail(DataLoss("{}: a text was expected", what_));
    }
    const uint32_t size = mp_decode_strl(&at_);
    if (size > end_ - at_) return Fail(DataLoss("{}: a text of {} bytes", what_, size));
    text.assign(at_, size);
    at_ += size;
  }
  // As it lies in the message; "" if there is none.
  std::string_view Binary() {
    // The library asserts that a byte follows the type's.
    if (!Is(MP_BIN) || end_ - at_ < 2 || mp_check_binl(at_, end_) > 0) {
      return Fail(DataLoss("{}: bytes were expected", what_)), "";
    }
    const uint32_t size = mp_decode_binl(&at_);
    if (size > end_ - at_)
      return Fail(DataLoss("{}: {} bytes, {} left", what_, size, end_ - at_)), "";
    at_ += size;
    return {at_ - size, size};
  }
  void operator()(AttentionForm& form) {
    bool expanded = false;
    (*this)(expanded);
    form = expanded ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
  }
  template <class A, class B>
  void operator()(std::pair<A, B>& pair) {
    Header(2);
    (*this)(pair.first);
    (*this)(pair.second);
  }
  template <class T>
  void operator()(std::vector<T>& values, int64_t most = std::numeric_limits<int32_t>::max()) {
    const uint32_t size = Array(most);
    for (uint32_t i = 0; i < size && status_.ok(); ++i) Get(values.emplace_back());
  }

  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
    at_ = end_;
  }
  bool AtEnd() const { return at_ == end_; }
  const Status& status() const { return status_; }

 private:
  template <class T>
  void Get(T& value) {
    if constexpr (requires { Fields(*this, value); }) {
      Fields(*this, value);
    } else {
      (*this)(value);
    }
  }

  bool Is(mp_type type) const {
    if (at_ == end_ || mp_typeof(*at_) != type) return false;
    return (type != MP_ARRAY || mp_check_array(at_, end_) <= 0) &&
           (type != MP_UINT || mp_check_uint(at_, end_) <= 0);
  }
  // An element takes a byte at least, so `most` and the bytes left both bound what is read.
  uint32_t Array(int64_t most) {
    if (!Is(MP_ARRAY)) return Fail(DataLoss("{}: an array was expected", what_)), 0;
    const uint32_t size = mp_decode_array(&at_);
    if (size <= most && size <= end_ - at_) return size;
    return Fail(DataLoss("{}: array of {} items", what_, size)), 0;
  }
  uint64_t Uint(uint64_t most) {
    if (!Is(MP_UINT)) return Fail(DataLoss("{}: an unsigned number was expected", what_)), 0;
    const uint64_t value = mp_decode_uint(&at_);
    if (value <= most) return value;
    return Fail(DataLoss("{}: {} is above {}", what_, value, most)), 0;
  }

  static constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

  const std::string_view what_;
  const char* at_;
  const char* end_;
  Status status_;
};

}  // namespace fathom
