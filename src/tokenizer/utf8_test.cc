#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

#include "tokenizer/byte_alphabet.h"

namespace fathom {
namespace {

constexpr std::string_view kReplaced = kReplacementCharacter;

std::string Replaced(std::string_view bytes) {
  std::string text;
  const size_t consumed = AppendReplacingInvalid(bytes, &text);
  return text + "|" + std::to_string(bytes.size() - consumed);
}

TEST(Utf8, EveryCodePointIsOneValidUnit) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string character;
    if (code < 0x80) {
      character = {static_cast<char>(code)};
    } else if (code < 0x800) {
      character = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else if (code < 0x10000) {
      character = {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
                   static_cast<char>(0x80 | (code & 63))};
    } else {
      character = {
          static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
          static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
    const Utf8Unit unit = NextUtf8Unit(character + "x");
    ASSERT_EQ(unit.kind, Utf8Unit::Kind::kValid) << uint32_t{code};
    ASSERT_EQ(unit.size, character.size()) << uint32_t{code};
    ASSERT_EQ(uint32_t{CodePoint(character)}, uint32_t{code});
    for (size_t size = 1; size < character.size(); ++size) {
      ASSERT_EQ(NextUtf8Unit(character.substr(0, size)).kind, Utf8Unit::Kind::kUnfinished)
          << uint32_t{code};
    }
  }
}

TEST(Utf8, InvalidRunsBecomeOneReplacementEach) {
  const std::string one(kReplaced);
  EXPECT_EQ(Replaced("a\xFFz"), "a" + one + "z|0");
  EXPECT_EQ(Replaced("\xC0\xAF"), one + one + "|0");                      // overlong
  EXPECT_EQ(Replaced("\xE0\x80\xAF"), one + one + one + "|0");            // overlong
  EXPECT_EQ(Replaced("\xED\xA0\x80"), one + one + one + "|0");            // a surrogate
  EXPECT_EQ(Replaced("\xF4\x90\x80\x80"), one + one + one + one + "|0");  // above U+10FFFF
  EXPECT_EQ(Replaced("\xE4\xB8x"), one + "x|0");  // a cut character is one run
  EXPECT_EQ(Replaced("\xF0\x9F\x91y"), one + "y|0");
  EXPECT_EQ(Replaced("\x80\x80"), one + one + "|0");
}

TEST(Utf8, AnUnfinishedCharacterWaits) {
  EXPECT_EQ(Replaced("a\xE4\xB8"), "a|2");
  EXPECT_EQ(Replaced("\xF0\x9F\x91"), "|3");
  EXPECT_EQ(Replaced("\xF0\x80"), std::string(kReplaced) + std::string(kReplaced) + "|0");
}

TEST(Utf8, ValidPrefixEndsAtTheFirstBadByte) {
  EXPECT_EQ(ValidUtf8Prefix(""), 0u);
  EXPECT_EQ(ValidUtf8Prefix("twelve bytes plus é"), 20u);
  EXPECT_EQ(ValidUtf8Prefix("twelve bytes\xE9 plus"), 12u);
  EXPECT_EQ(ValidUtf8Prefix("\xE4\xB8"), 0u);
}

TEST(ByteAlphabet, SpellsEveryByte) {
  std::string spelling, bytes;
  for (int byte = 0; byte < 256; ++byte) {
    bytes += static_cast<char>(byte);
    spelling += SpellByte(static_cast<uint8_t>(byte));
  }
  EXPECT_EQ(BytesOfSpelling(spelling), bytes);
  EXPECT_EQ(SpellByte(' '), "Ġ");
  EXPECT_EQ(SpellByte('\n'), "Ċ");
  EXPECT_EQ(SpellByte(0xAD), "Ń");
  EXPECT_EQ(SpellByte(0xFF), "ÿ");
  EXPECT_EQ(BytesOfSpelling("a b"), std::nullopt);
  EXPECT_EQ(BytesOfSpelling("中"), std::nullopt);
}

}  // namespace
}  // namespace fathom
