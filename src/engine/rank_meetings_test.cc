#include "engine/rank_meetings.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace fathom {
namespace {

class ToldRank final : public Communicator {
 public:
  ToldRank(int rank, std::vector<int> in_layout, std::optional<Meeting> last)
      : Communicator(rank, static_cast<int>(in_layout.size())), last_(last) {
    SetInLayout(std::move(in_layout));
  }
  std::optional<Meeting> LastMeeting() const override { return last_; }

 private:
  const std::optional<Meeting> last_;
};

std::vector<std::string> Lines(std::vector<std::optional<Meeting>> tensor,
                               std::optional<Meeting> stages = {}) {
  std::vector<std::unique_ptr<ToldRank>> told;
  std::vector<EngineRank> ranks(tensor.size());
  for (size_t i = 0; i < tensor.size(); ++i) {
    const int rank = static_cast<int>(i);
    told.push_back(std::make_unique<ToldRank>(rank, std::vector{4, 5, 6}, tensor[i]));
    ranks[i].shard.groups.tensor = told.back().get();
  }
  told.push_back(std::make_unique<ToldRank>(1, std::vector{9, 4}, stages));
  ranks[0].shard.groups.stages = told.back().get();
  return DescribeMeetings(ranks);
}

TEST(RankMeetings, SayWhoHasNotComeToWhereOthersWait) {
  const Meeting next{"all_gather", 8, 512, 18}, last{"all_reduce_norm", 8, 256, 17};
  EXPECT_EQ(Lines({next, last, next}),
            std::vector<std::string>{
                "meetings of the tensor-parallel group: rank 4 is at 18, all_gather of [8, 512]; "
                "rank 5 is at 17, all_reduce_norm of [8, 256] and has not come to the next; "
                "rank 6 is at 18, all_gather of [8, 512]"});
  EXPECT_EQ(Lines({last, last}, next),
            (std::vector<std::string>{
                "meetings of the tensor-parallel group: rank 4 is at 17, all_reduce_norm of "
                "[8, 256]; rank 5 is at 17, all_reduce_norm of [8, 256]",
                "meetings of the tokens of stages: rank 4 is at 18, all_gather of [8, 512]"}));
}

TEST(RankMeetings, BeginAnewAfterTheLastNumber) {
  const Meeting first{"dispatch", 1, 2, 0}, last{"combine", 1, 2, Meeting::kNumbers - 1};
  EXPECT_EQ(Lines({last, first})[0],
            "meetings of the tensor-parallel group: rank 4 is at 2097151, combine of [1, 2] and "
            "has not come to the next; rank 5 is at 0, dispatch of [1, 2]");
  EXPECT_EQ(Lines({Meeting{}, Meeting{"combine", 1, 2, 1}})[0],
            "meetings of the tensor-parallel group: rank 4 is at none and has not come to the "
            "next; rank 5 is at 1, combine of [1, 2]");
}

TEST(RankMeetings, RanksThatDoNotTellHaveNoLine) {
  EXPECT_EQ(Lines({std::nullopt, std::nullopt}), std::vector<std::string>());
}

}  // namespace
}  // namespace fathom
