#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "base/memory_budget.h"
#include "base/mmap.h"
#include "tokenizer/test_tokenizer.h"

namespace fathom {
namespace {

std::vector<int> Raws(const Result<std::vector<TokenId>>& ids) {
  std::vector<int> raws;
  if (!ids.ok()) {
    ADD_FAILURE() << ids.status().ToString();
    return raws;
  }
  for (const TokenId id : *ids) raws.push_back(Raw(id));
  return raws;
}

using Ids = std::vector<int>;

std::unique_ptr<Tokenizer> Loaded(const TestFolder& folder) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(folder.path());
  CHECK(tokenizer.ok(), "{}", tokenizer.status().ToString());
  return *std::move(tokenizer);
}

const Tokenizer& TinyR1() {
  static const std::unique_ptr<Tokenizer> tokenizer =
      std::move(Tokenizer::Load("models/tiny-r1")).value();
  return *tokenizer;
}

TEST(Tokenizer, TinyR1EqualsTheReference) {
  const std::string text =
      ReadFile("tests/golden/tiny-r1/tokenizer_reference.json", 1 << 20).value();
  const boost::json::value reference = boost::json::parse(text);
  ASSERT_GT(reference.as_array().size(), 40u);
  for (const boost::json::value& entry : reference.as_array()) {
    const std::string question(entry.at("text").as_string());
    Ids expected;
    for (const auto& id : entry.at("ids").as_array()) {
      expected.push_back(static_cast<int>(id.as_int64()));
    }
    const Result<std::vector<TokenId>> ids = TinyR1().Encode(question, false);
    EXPECT_EQ(Raws(ids), expected) << question;
    EXPECT_EQ(TinyR1().Decode(*ids, false), question);
  }
}

TEST(Tokenizer, TinyR1Facts) {
  const Tokenizer& tokenizer = TinyR1();
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  EXPECT_EQ(tokenizer.IdOf(tokenizer.bos_token()), TokenId{4082});
  EXPECT_EQ(tokenizer.eos_token(), "<｜end▁of▁sentence｜>");
  EXPECT_NE(tokenizer.chat_template().find("add_generation_prompt"), std::string::npos);
  EXPECT_EQ(tokenizer.IdOf("<think>"), TokenId{4087});
  EXPECT_EQ(tokenizer.IdOf("no such token"), std::nullopt);
  EXPECT_TRUE(tokenizer.IsSpecial(TokenId{4087}));
  EXPECT_FALSE(tokenizer.IsSpecial(TokenId{64}));
  EXPECT_FALSE(tokenizer.IsSpecial(TokenId{-1}));
  EXPECT_EQ(tokenizer.TokenBytes(*tokenizer.IdOf("Ġthe")), " the");
  EXPECT_EQ(tokenizer.TokenBytes(TokenId{99999}), "");
  // Its class is PreTrainedTokenizerFast: add_bos_token is not heeded, as in transformers.
  EXPECT_EQ(tokenizer.Encode("Hello", true).value(), tokenizer.Encode("Hello", false).value());
}

TEST(Tokenizer, SpecialTokensTypedByAUserStayText) {
  const Tokenizer& tokenizer = TinyR1();
  SpannedText chat;
  chat.Append("<｜User｜>", true);
  chat.Append("<think> 1", false);
  chat.Append("2<｜Assistant｜><thi", true);
  chat.Append("nk>", false);
  const std::vector<TokenId> ids = tokenizer.Encode(chat).value();
  EXPECT_EQ(tokenizer.Decode(ids, false), chat.text());
  std::vector<int> special;
  for (const TokenId id : ids) {
    if (tokenizer.IsSpecial(id)) special.push_back(Raw(id));
  }
  EXPECT_EQ(special, (Ids{4085, 4086}));
  EXPECT_EQ(tokenizer.Encode(SpannedText(chat.text(), true)).value(),
            tokenizer.Encode(chat.text(), false).value());
}

TEST(Tokenizer, WordsCrossTheBordersOfSpans) {
  const TokenizerFolder folder{TokenizerFields()};
  const auto tokenizer = Loaded(folder);
  SpannedText text;
  text.Append(" ", true);
  text.Append("a", false);
  text.Append("b<s>", true);
  EXPECT_EQ(Raws(tokenizer->Encode(text)), (Ids{259, 261}));
}

TEST(Tokenizer, UntrustedTextGivesNoAddedTokenEvenByMerging) {
  TokenizerFields fields;
  fields.added_tokens = "[" + AddedTokenJson(256, "ab") + "]";
  fields.more_of_model = R"(, "ignore_merges": true)";
  const TokenizerFolder folder(fields);
  const auto tokenizer = Loaded(folder);
  EXPECT_EQ(Raws(tokenizer->Encode("ab", false)), Ids{256});
  EXPECT_EQ(Raws(tokenizer->Encode(SpannedText("ab", false))), (Ids{'a', 'b'}));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8OrTooLong) {
  const auto bad = TinyR1().Encode("abc\xE9", false);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(bad.status().message().find("byte 3"), std::string::npos);
  const auto cut = TinyR1().Encode(SpannedText("abc\xE4\xB8", false));
  EXPECT_EQ(cut.status().code(), StatusCode::kInvalidArgument);
  const auto big = TinyR1().Encode(std::string(kMaxTextBytes + 1, 'a'), false);
  EXPECT_EQ(big.status().code(), StatusCode::kResourceExhausted);
}

TEST(Tokenizer, ManyThreads) {
  const std::string text = "Threads 123 share\n\n one <think> tokenizer, é中文 …";
  const std::vector<TokenId> expected = TinyR1().Encode(text, true).value();
  std::vector<std::thread> threads;
  std::atomic<int> equal = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        equal += TinyR1().Encode(text, true).value() == expected &&
                 TinyR1().Decode(expected, false) == text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 800);
}

// tokenizer_config.json decides for the Llama class, tokenizer.json for the others. Expected ids
// are those of transformers 4.57.
TEST(Tokenizer, BosAndEosRules) {
  TokenizerFields fields;
  fields.added_tokens = "[" + AddedTokenJson(261, "<s>") + "," + AddedTokenJson(262, "</s>") + "]";
  TokenizerFields with_template = fields;
  with_template.post_processor = R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}},
       {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
       "special_tokens": {"x": {"id": "x", "ids": [261, 257], "tokens": ["<s>", "abc"]}}}]})";
  const auto encode = [](const TokenizerFields& given, std::string_view config) {
    const TokenizerFolder folder(given);
    if (!config.empty()) {
      folder.Write(
          "tokenizer_config.json",
          fmt::format(R"({{"bos_token": "<s>", "eos_token": {{"content": "</s>"}}{}}})", config));
    }
    return Raws(Loaded(folder)->Encode("bc", true));
  };
  EXPECT_EQ(encode(fields, ""), Ids{258});
  EXPECT_EQ(encode(with_template, ""), (Ids{261, 257, 258}));
  const std::string fast = R"(, "tokenizer_class": "PreTrainedTokenizerFast")";
  EXPECT_EQ(encode(fields, fast + R"(, "add_bos_token": true)"), Ids{258});
  EXPECT_EQ(encode(with_template, fast + R"(, "add_bos_token": false)"), (Ids{261, 257, 258}));
  const std::string llama = R"(, "tokenizer_class": "LlamaTokenizerFast")";
  EXPECT_EQ(encode(fields, llama), (Ids{261, 258}));
  EXPECT_EQ(encode(with_template, llama + R"(, "add_bos_token": false)"), Ids{258});
  EXPECT_EQ(encode(with_template, llama + R"(, "add_eos_token": true)"), (Ids{261, 258, 262}));
  EXPECT_EQ(encode(fields, R"(, "add_bos_token": true)"), (Ids{261, 258}));
  EXPECT_EQ(encode(with_template, R"(, "model_max_length": 5)"), (Ids{261, 257, 258}));
}

TEST(Tokenizer, ConfigFile) {
  const TokenizerFolder folder{TokenizerFields()};
  EXPECT_EQ(Loaded(folder)->bos_token(), "");
  EXPECT_EQ(Loaded(folder)->chat_template(), "");
  folder.Write("tokenizer_config.json", R"({"bos_token": null, "model_max_length": 1e30,
      "chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}],
      "added_tokens_decoder": {"261": {"content": "<s>", "special": true, "normalized": false}}})");
  EXPECT_EQ(Loaded(folder)->bos_token(), "");
  EXPECT_EQ(Loaded(folder)->chat_template(), "D");
  folder.Write("tokenizer_config.json",
               R"({"model_max_length": 1000000000000000019884624838656, "chat_template": "T"})");
  EXPECT_EQ(Loaded(folder)->chat_template(), "T");
  folder.Write("chat_template.jinja", "from its own file");
  EXPECT_EQ(Loaded(folder)->chat_template(), "from its own file");
}

TEST(Tokenizer, MergesAsStringsOrPairs) {
  TokenizerFields fields;
  const TokenizerFolder pairs(fields);
  fields.merges = R"(["#version: 0.2", "b c", "a b", "ab c", "Ġ ab"])";
  const TokenizerFolder strings(fields);
  for (const TestFolder* folder : {&pairs, &strings}) {
    EXPECT_EQ(Raws(Loaded(*folder)->Encode("abc ab", false)), (Ids{'a', 258, 259}));
  }
}

TEST(Tokenizer, IgnoreMergesTakesWholeWords) {
  TokenizerFields fields;
  fields.more_of_model = R"(, "ignore_merges": true)";
  const TokenizerFolder folder(fields);
  EXPECT_EQ(Raws(Loaded(folder)->Encode("abc abcc", false)), (Ids{257, ' ', 'a', 258, 'c'}));
}

// What a long word takes while its symbols are merged is counted, but not in what its request may
// take by its size. A word that could never be merged is refused for good.
TEST(Tokenizer, LongWordsAreReadBesideTheRequestsLimit) {
  constexpr size_t kMiB = size_t{1} << 20;
  MemoryBudget budget(64 * kMiB), little(kMiB), of_clients(64 * kMiB, kMiB);
  const auto encode = [](MemoryBudget& memory, size_t letters) {
    MemoryClaim claim(memory);
    claim.CountFor(std::make_shared<ClientMemory>());
    claim.SetLimit(4 * letters + 4 * letters / 2);  // its tokens, while there are few
    const Status status =
        TinyR1().Encode(std::string(letters, 'a'), false, {.memory = &claim}).status();
    EXPECT_EQ(claim.held(), 0u);
    EXPECT_EQ(claim.Grow(6 * letters + 1).code(), StatusCode::kResourceExhausted);
    return std::pair(status, claim.peak());
  };
  const auto [read, peak] = encode(budget, 100'000);
  EXPECT_TRUE(read.ok()) << read.ToString();
  EXPECT_GE(peak, 1'600'000u);
  EXPECT_LE(peak, 2'200'000u);
  EXPECT_TRUE(encode(budget, 1'500'000).first.ok());
  MemoryClaim other(budget);
  ASSERT_TRUE(other.Grow(47 * kMiB).ok());
  EXPECT_EQ(encode(budget, 100'000).first.code(), StatusCode::kUnavailable);
  other.Reset();
  for (const Status& refused : {encode(budget, 1'600'000).first, encode(little, 90'000).first,
                                encode(of_clients, 90'000).first}) {
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(refused.message().find("break it"), std::string::npos) << refused.message();
  }
}

// What is claimed for tokens is refused where a request has no room for them, and given back.
TEST(Tokenizer, TokensCountWhileTheyAreFound) {
  MemoryBudget budget(size_t{64} << 20);
  MemoryClaim claim(budget);
  std::string text;
  while (text.size() < 100'000) text += "1,";
  claim.SetLimit(300'000);
  EXPECT_EQ(TinyR1().Encode(text, false, {.memory = &claim}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(claim.held(), 0u);
  claim.SetLimit(600'000);
  EXPECT_TRUE(TinyR1().Encode(text, false, {.memory = &claim}).ok());
  EXPECT_GE(claim.peak(), 400'000u);
  EXPECT_EQ(claim.held(), 0u);
}

// Where a request by itself has more than a server gives one, waiting would not help.
TEST(Tokenizer, TokensThatNeverHaveRoomAreRefusedForGood) {
  MemoryBudget of_clients(size_t{64} << 20, size_t{1} << 20);
  MemoryClaim claim(of_clients);
  claim.CountFor(std::make_shared<ClientMemory>());
  claim.SetLimit(size_t{32} << 20);
  const Status status =
      TinyR1().Encode(std::string(400'000, '1'), false, {.memory = &claim}).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
}

// A prefix space copies the text that it stands before.
TEST(Tokenizer, ThePrefixedTextCounts) {
  TokenizerFields fields;
  fields.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": true})";
  const TokenizerFolder folder(fields);
  MemoryBudget budget(size_t{64} << 20);
  MemoryClaim claim(budget);
  const auto tokenizer = Loaded(folder);
  claim.SetLimit(500'000);
  EXPECT_EQ(
      tokenizer->Encode(std::string(600'000, '\n'), false, {.memory = &claim}).status().code(),
      StatusCode::kResourceExhausted);
  EXPECT_EQ(claim.held(), 0u);
  claim.SetLimit(5'000'000);
  EXPECT_TRUE(tokenizer->Encode(std::string(600'000, '\n'), false, {.memory = &claim}).ok());
  EXPECT_EQ(claim.held(), 0u);
}

}  // namespace
}  // namespace fathom
