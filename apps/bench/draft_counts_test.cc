#include "draft_counts.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(DraftCountsTest, AddsUpSeriesAndTakesDifferences) {
  const auto before = ReadDraftCounts(
      "# HELP vllm:spec_decode_num_drafts_total Decodes.\n"
      "vllm:spec_decode_num_drafts_total{engine=\"0\"} 10\n"
      "vllm:spec_decode_num_drafts_total{engine=\"1\"} 2.0\n"
      "vllm:spec_decode_num_draft_tokens_total 40 1700000000\n"
      "vllm:spec_decode_num_accepted_tokens_total{a=\"}\"} 1e1\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 7");
  ASSERT_TRUE(before);
  EXPECT_EQ(before->decodes, 12);
  EXPECT_EQ(before->proposed, 40);
  EXPECT_EQ(before->accepted, 10);
  const DraftCounts news = DraftCounts{22, 80, 25} - *before;
  EXPECT_DOUBLE_EQ(news.AcceptedShare(), 15.0 / 40);
  EXPECT_DOUBLE_EQ(news.MeanTokens(), 2.5);
}

TEST(DraftCountsTest, WhatIsNoFigureIsNothing) {
  EXPECT_FALSE(ReadDraftCounts(""));
  EXPECT_FALSE(ReadDraftCounts("vllm:spec_decode_num_drafts_total 3\n"));
  EXPECT_FALSE(
      ReadDraftCounts("vllm:spec_decode_num_drafts_total nan\n"
                      "vllm:spec_decode_num_draft_tokens_total x\n"
                      "vllm:spec_decode_num_accepted_tokens_total{ 1\n"));
  EXPECT_EQ(DraftCounts().AcceptedShare(), 0);
  EXPECT_EQ(DraftCounts().MeanTokens(), 0);
}

}  // namespace
}  // namespace fathom
