#include "reply.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr TokenId kPrompt[] = {TokenId{1}, TokenId{7}, TokenId{8}};
constexpr AskedPrompt kAsked{.tokens = kPrompt, .vocab_size = 10};

TEST(ReplyTest, CompletionsAsVllmWritesThem) {
  const Result<Answer> answer = ReadCompletion(
      R"({"choices": [{"token_ids": [3, 4], "logprobs": {"tokens": ["token_id:3", "token_id:4"],
          "token_logprobs": [-0.5, null], "top_logprobs": [{"token_id:3": -0.5, "token_id:2": -0.25,
          "text": -9}, null]},
          "prompt_logprobs": [null, {"7": {"logprob": -1, "rank": 2}, "6": {"logprob": -0.5}},
          {"8": {"logprob": -1e400}}]}]})",
      kAsked);
  EXPECT_FALSE(answer.ok());  // no JSON number
  const Result<Answer> good = ReadCompletion(
      R"({"choices": [{"token_ids": [3, 4], "logprobs": {"tokens": ["token_id:3", "token_id:4"],
          "token_logprobs": [-0.5, null], "top_logprobs": [{"token_id:3": -0.5, "token_id:2": -0.25,
          "text": -9}, null]},
          "prompt_logprobs": [null, {"7": {"logprob": -1, "rank": 2}, "6": {"logprob": -0.5}},
          {"8": {"logprob": -99999}}]}]})",
      kAsked);
  ASSERT_TRUE(good.ok()) << good.status().message();
  ASSERT_EQ(good->tokens.size(), 2);
  EXPECT_EQ(good->tokens[0].logprobs->top.size(), 2);
  EXPECT_EQ(good->tokens[0].logprobs->top[0].first, TokenId{2});  // the likeliest first
  EXPECT_FALSE(good->tokens[1].logprobs);
  ASSERT_EQ(good->prompt.size(), 2);
  EXPECT_EQ(good->prompt[0].logprob, -1);
  EXPECT_EQ(good->prompt[1].logprob, -9999);
}

TEST(ReplyTest, NamesSayTheTokensWhereNothingElseDoes) {
  const Result<Answer> named = ReadCompletion(
      R"({"choices": [{"logprobs": {"tokens": ["token_id:3"], "token_logprobs": [-0.5]}}]})",
      kAsked);
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(named->tokens[0].id, TokenId{3});
  EXPECT_TRUE(named->prompt.empty());
  const Result<Answer> texts =
      ReadCompletion(R"({"choices": [{"logprobs": {"tokens": ["a"]}}]})", kAsked);
  ASSERT_FALSE(texts.ok());
  EXPECT_NE(texts.status().message().find("return_token_ids"), std::string::npos);
}

TEST(ReplyTest, EchoIsThePromptsAlone) {
  const Result<std::vector<TokenLogprobs>> echo = ReadEcho(
      R"({"choices": [{"logprobs": {"tokens": ["token_id:1", "token_id:7", "token_id:8", "x"],
          "token_logprobs": [null, -1, -2, -3]}}]})",
      kAsked);
  ASSERT_TRUE(echo.ok()) << echo.status().message();
  ASSERT_EQ(echo->size(), 2);
  EXPECT_EQ((*echo)[1].logprob, -2);
  // A server that does not know it answers with what it generated.
  EXPECT_TRUE(
      ReadEcho(R"({"choices": [{"logprobs": {"token_logprobs": [-3]}}]})", kAsked)->empty());
  EXPECT_FALSE(ReadEcho(R"({"choices": [{"logprobs": {"tokens": ["token_id:1", "token_id:2",
      "token_id:8"], "token_logprobs": [null, -1, -2]}}]})",
                        kAsked)
                   .ok());
}

TEST(ReplyTest, SglangsOwn) {
  const Result<Answer> answer = ReadNative(
      R"({"text": "x", "meta_info": {"output_token_logprobs": [[-0.5, 3, null]],
          "output_top_logprobs": [[[-0.5, 3, null], [-1, 2, "b"]]],
          "input_token_logprobs": [[null, 1, null], [-1, 7, null], [-2, 8, null]],
          "input_top_logprobs": [null, [[-0.1, 4, null]], [[-0.2, 5, null]]]}})",
      kAsked);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->tokens[0].logprobs->top[1].first, TokenId{2});
  ASSERT_EQ(answer->prompt.size(), 2);
  EXPECT_EQ(answer->prompt[1].top[0].first, TokenId{5});
}

TEST(ReplyTest, WhatMakesNoSenseIsRefused) {
  for (const char* body :
       {"", "{", "[]", "{}", R"({"choices": []})", R"({"choices": [3]})",
        R"({"choices": [{"token_ids": ["a"]}]})", R"({"choices": [{"token_ids": [10]}]})",
        R"({"choices": [{"token_ids": [-1]}]})", R"({"choices": [{"token_ids": [1.5]}]})",
        R"({"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": ["-1"]}}]})",
        R"({"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [2.5]}}]})",
        R"({"choices": [{"token_ids": [1], "prompt_logprobs": [null]}]})",
        R"({"choices": [{"token_ids": [1], "prompt_logprobs": [null, {"6": -1}, {"8": -1}]}]})",
        R"({"choices": [{"token_ids": [1], "prompt_logprobs": [null, {"x": -1}, {"8": -1}]}]})",
        R"({"choices": [{"token_ids": [1], "prompt_logprobs": [null, 3, {"8": -1}]}]})"}) {
    EXPECT_FALSE(ReadCompletion(body, kAsked).ok()) << body;
    EXPECT_FALSE(ReadNative(body, kAsked).ok()) << body;
  }
  EXPECT_FALSE(ReadNative(R"({"meta_info": {"output_token_logprobs": [[-1]]}})", kAsked).ok());
  EXPECT_FALSE(ReadCompletion(std::string(1000, '['), kAsked).ok());
  EXPECT_FALSE(ReadTokenized(R"({"tokens": [11]})", 10).ok());
  EXPECT_FALSE(ReadTokenized(R"({"count": 1})", 10).ok());
}

}  // namespace
}  // namespace fathom
