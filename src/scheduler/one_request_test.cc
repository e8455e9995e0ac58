#include "scheduler/one_request.h"

#include <gtest/gtest.h>

#include <vector>

namespace fathom {
namespace {

std::shared_ptr<const RequestParams> Params(size_t prompt) {
  RequestParams params;
  params.prompt.assign(prompt, TokenId{7});
  params.max_tokens = 3;
  return std::make_shared<const RequestParams>(params);
}

TEST(OneRequest, OpensItsSlotOnceAndTakesPagesInFallingOrder) {
  const auto params = Params(128);
  OneRequest request(params, 3);
  const std::vector<TokenId> tokens(100, TokenId{9});
  const StepPlan first = request.Next(AttentionForm::kExpanded, tokens);
  ASSERT_EQ(first.openings.size(), 1u);
  EXPECT_EQ(first.openings[0].params, params);
  EXPECT_EQ(first.openings[0].length, 0);
  EXPECT_EQ(first.openings[0].final_length, 131);
  ASSERT_EQ(first.rows.size(), 1u);
  EXPECT_EQ(first.rows[0].form, AttentionForm::kExpanded);
  EXPECT_EQ(first.rows[0].begin, 0);
  EXPECT_EQ(first.rows[0].tokens, tokens);
  EXPECT_EQ(first.rows[0].first_new_page, 0);
  EXPECT_EQ(first.rows[0].new_pages, (std::vector{PageId{2}, PageId{1}}));
  EXPECT_EQ(first.num_logit_vectors(), 0);

  // Up to the border of a page, then beyond it.
  const StepPlan second = request.Next(AttentionForm::kAbsorbed, std::span(tokens).first(28));
  EXPECT_EQ(second.step, first.step + 1);
  EXPECT_TRUE(second.openings.empty());
  EXPECT_EQ(second.rows[0].form, AttentionForm::kAbsorbed);
  EXPECT_EQ(second.rows[0].begin, 100);
  EXPECT_TRUE(second.rows[0].new_pages.empty());
  const StepPlan third = request.Next(AttentionForm::kAbsorbed, std::span(tokens).first(1));
  EXPECT_EQ(third.rows[0].begin, 128);
  EXPECT_EQ(third.rows[0].first_new_page, 2);
  EXPECT_EQ(third.rows[0].new_pages, std::vector{PageId{0}});
}

TEST(OneRequest, PlansSurviveTheirBytes) {
  OneRequest request(Params(70), 2);
  for (const size_t tokens : {70, 1, 57}) {
    const StepPlan plan =
        request.Next(AttentionForm::kExpanded, std::vector<TokenId>(tokens, TokenId{9}));
    const auto parsed = ParseStepPlan(Serialize(plan));
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_TRUE(*parsed == plan);
  }
}

TEST(OneRequestDeathTest, HasNoPageBeyondItsOwn) {
  OneRequest request(Params(64), 1);
  const std::vector<TokenId> tokens(65, TokenId{9});
  EXPECT_DEATH(static_cast<void>(request.Next(AttentionForm::kExpanded, tokens)),
               "a row \\[0, 65\\) of a request with room for 64");
}

}  // namespace
}  // namespace fathom
