// Tensors of a checkpoint that have been asked for, and not been dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "checkpoint/safetensors.h"
#include "tensor/buffer.h"

namespace fathom {

// THREAD: any. Tensors must outlive it.
class HeldTensors {
 public:
  // Where the tensor's bytes are: here, or in a copy if a file does not align them to their type.
  const std::byte* Hold(const StoredTensor& tensor, std::span<const std::byte> bytes);
  void Drop(const StoredTensor& tensor);
  // Of all Hold()s, but of those of a tensor that was held already.
  uint64_t asked_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string_view, std::optional<Buffer>> held_;  // guarded by mutex_: copies
  uint64_t asked_bytes_ = 0;                                          // guarded by mutex_
};

}  // namespace fathom
