// The alphabet in which byte-level vocabularies are spelled: one printable character per byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fathom {

// The character (UTF-8) that spells `byte`: itself for the printable characters of Latin-1; the
// others take U+0100, U+0101, ... in order. Source: GPT-2's vocabulary.
std::string SpellByte(uint8_t byte);

// The bytes that `spelling` stands for; nothing if it has a character outside the alphabet.
// REQUIRES: `spelling` is UTF-8.
std::optional<std::string> BytesOfSpelling(std::string_view spelling);

}  // namespace fathom
