// A warp's size, and the mask of all its lanes.
#pragma once

#include <cstdint>

namespace fathom {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

}  // namespace fathom
