// UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

// What stands at the beginning of some bytes.
struct Utf8Unit {
  enum class Kind { kValid, kInvalid, kUnfinished };  // kUnfinished: more bytes may make it valid
  Kind kind;
  size_t size;  // bytes of the character, or of the longest run that could have begun one (>= 1)
};

// REQUIRES: !bytes.empty().
Utf8Unit NextUtf8Unit(std::string_view bytes);

// Offset of the first byte that is not UTF-8; bytes.size() if there is none.
size_t ValidUtf8Prefix(std::string_view bytes);
// Names the first byte that is not.
Status CheckUtf8(std::string_view bytes);

// Appends `bytes` to `text` with U+FFFD for each invalid run, and returns how many bytes were
// consumed: all but an unfinished character at the end.
size_t AppendReplacingInvalid(std::string_view bytes, std::string* text);

// The code point of a character. REQUIRES: `character` is one valid UTF-8 character.
char32_t CodePoint(std::string_view character);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace fathom
