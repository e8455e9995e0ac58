#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace fathom {
namespace {

constexpr bool SpellsItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

constexpr int kLetters = 0x144;  // code points of the alphabet are below

// Code point to byte; -1 for none.
constexpr std::array<int16_t, kLetters> kByteOf = [] {
  std::array<int16_t, kLetters> byte_of{};
  for (int16_t& byte : byte_of) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    byte_of[SpellsItself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  }
  return byte_of;
}();

}  // namespace

std::string SpellByte(uint8_t byte) {
  int code = 0;
  while (kByteOf[code] != byte) ++code;
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::optional<std::string> BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const size_t size = NextUtf8Unit(spelling.substr(at)).size;
    const char32_t code = CodePoint(spelling.substr(at, size));
    if (code >= kLetters || kByteOf[code] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[code]);
    at += size;
  }
  return bytes;
}

}  // namespace fathom
