// For tests.
#pragma once

namespace fathom {

// Built with a sanitizer, under which everything takes ten times as long: what repeats one check
// over many seeds or requests then takes fewer of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderSanitizer = true;
#else
inline constexpr bool kUnderSanitizer = false;
#endif

}  // namespace fathom
