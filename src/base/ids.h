// Strong types for what would otherwise all be int.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fathom {

enum class TokenId : int32_t {};
enum class PageId : int32_t {};      // a page of the latent KV pool
enum class SlotId : int32_t {};      // the device-resident state of a running request
enum class RequestId : uint64_t {};  // unique within a process, never reused

// The number inside an id.
template <class Id>
requires std::is_enum_v<Id>
constexpr std::underlying_type_t<Id> Raw(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

// Positions a page holds. "Block" means a CUDA block, nothing else.
inline constexpr int32_t kPageTokens = 64;

}  // namespace fathom
