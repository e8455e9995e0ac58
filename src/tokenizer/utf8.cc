#include "tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace fathom {
namespace {

// Length of the leading run of ASCII bytes.
size_t AsciiPrefix(std::string_view bytes) {
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (at < bytes.size() && static_cast<uint8_t>(bytes[at]) < 0x80) ++at;
  return at;
}

// Bytes of the character that `lead` begins (0 if none), and the range of its second byte.
struct Lead {
  size_t size;
  uint8_t low, high;
};

Lead LeadOf(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (lead == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};  // above: beyond U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Unit NextUtf8Unit(std::string_view bytes) {
  using Kind = Utf8Unit::Kind;
  const Lead lead = LeadOf(static_cast<uint8_t>(bytes[0]));
  if (lead.size == 0) return {Kind::kInvalid, 1};
  for (size_t i = 1; i < lead.size; ++i) {
    if (i == bytes.size()) return {Kind::kUnfinished, i};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Kind::kInvalid, i};
  }
  return {Kind::kValid, lead.size};
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    at += AsciiPrefix(bytes.substr(at));
    if (at == bytes.size()) break;
    const Utf8Unit unit = NextUtf8Unit(bytes.substr(at));
    if (unit.kind != Utf8Unit::Kind::kValid) return at;
    at += unit.size;
  }
  return at;
}

Status CheckUtf8(std::string_view bytes) {
  const size_t valid = ValidUtf8Prefix(bytes);
  if (valid == bytes.size()) return {};
  return InvalidArgument("the text is not UTF-8: byte {} (0x{:02X}) begins no character", valid,
                         static_cast<uint8_t>(bytes[valid]));
}

size_t AppendReplacingInvalid(std::string_view bytes, std::string* text) {
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t valid = ValidUtf8Prefix(bytes.substr(at));
    text->append(bytes.substr(at, valid));
    at += valid;
    if (at == bytes.size()) break;
    const Utf8Unit unit = NextUtf8Unit(bytes.substr(at));
    if (unit.kind == Utf8Unit::Kind::kUnfinished) break;
    text->append(kReplacementCharacter);
    at += unit.size;
  }
  return at;
}

char32_t CodePoint(std::string_view character) {
  const auto lead = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return lead;
  char32_t code = lead & (0xFFu >> (character.size() + 1));
  for (size_t i = 1; i < character.size(); ++i) {
    code = code << 6 | (static_cast<uint8_t>(character[i]) & 0x3Fu);
  }
  return code;
}

}  // namespace fathom
