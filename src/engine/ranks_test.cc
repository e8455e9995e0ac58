// Engines of several ranks on a CPU: tiny-r1, alone and in company.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <regex>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "engine/assembly.h"
#include "parallel/shared_memory.h"

namespace fathom {
namespace {

// An engine cut over ranks, and what it answered.
class RankedEngine {
 public:
  // `exchange_tokens`: of all ranks, that are exchanged at a time; 0: the table's.
  explicit RankedEngine(const ParallelLayout& layout, int64_t exchange_tokens = 0,
                        const Speculation& speculation = {},
                        double step_timeout_s = AssemblyOptions().step_timeout_s)
      : joined_(JoinedRanks::Join(layout, SharedMemoryCommunicator::GroupOf).value()) {
    if (exchange_tokens > 0) ops_.exchange_tokens = exchange_tokens;
    std::vector<EngineRank> places;
    for (int rank = 0; rank < layout.world(); ++rank) {
      devices_.push_back(std::make_unique<CpuDevice>(1));
      places.push_back(
          {devices_.back().get(), Shard::OfRank(layout, rank, joined_.Of(rank)), /*peer_bytes=*/0});
    }
    EngineLimits limits{.max_model_len = 256, .max_num_seqs = 8, .prefill_chunk = 64};
    limits.speculation = speculation;
    limits.FillDefaults(/*gpu=*/false);
    assembled_.emplace(AssembleEngine(checkpoint_, ops_, places,
                                      {.limits = limits, .step_timeout_s = step_timeout_s},
                                      /*progress=*/nullptr,
                                      [this](std::vector<RequestOutput> outputs) { Take(outputs); })
                           .value());
    assembled_->engine->Start();
  }

  // What these prompts are answered, all at the same time. Half of them draw at random.
  std::vector<std::vector<TokenId>> Answers(const std::vector<int>& prompts) {
    for (const int prompt : prompts) {
      RequestParams params{.prompt = {}, .max_tokens = 12};
      for (int i = 0; i < 5 + 40 * (prompt % 4); ++i)
        params.prompt.push_back(TokenId{prompt + 7 * i});
      params.sampling.temperature = prompt % 2 == 0 ? 0.0f : 1.0f;
      params.sampling.seed = static_cast<uint64_t>(prompt);
      params.sampling.logprobs = 2;
      const Status status =
          assembled_->engine->Submit({params, RequestId{static_cast<uint64_t>(next_ + prompt)}});
      EXPECT_TRUE(status.ok()) << status.message();
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ == prompts.size(); });
    std::vector<std::vector<TokenId>> answers;
    for (const int prompt : prompts) answers.push_back(tokens_[next_ + prompt]);
    ended_ = 0;
    next_ += 1000;
    return answers;
  }
  CpuDevice& device(size_t rank) { return *devices_[rank]; }
  // Which comes to its next norm, and not out of it. Before there are requests.
  void Halt(size_t rank) {
    halted = &devices_[rank]->stream();
    may_go_on = false;
    ops_.rms_norm.run = [](OpContext& context, const RmsNormArgs& args) {
      if (&context.stream == halted) may_go_on.wait(false);
      CpuOps(Fp8Activations::kExact).rms_norm.run(context, args);
    };
  }
  static void GoOn() {
    may_go_on = true;
    may_go_on.notify_all();
  }
  std::string error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // Of all tokens so far.
  std::map<int64_t, std::vector<float>> logprobs() const { return logprobs_; }
  std::vector<std::vector<float>> LogprobsInOrder() const {
    std::vector<std::vector<float>> all;
    for (const auto& [id, logprobs] : logprobs_) all.push_back(logprobs);
    return all;
  }

 private:
  void Take(const std::vector<RequestOutput>& outputs) {
    const std::lock_guard lock(mutex_);
    for (const RequestOutput& output : outputs) {
      const auto id = static_cast<int64_t>(Raw(output.id));
      for (const GeneratedToken& token : output.tokens) {
        tokens_[id].push_back(token.id);
        logprobs_[id].push_back(token.logprobs->logprob);
      }
      ended_ += output.finish.has_value();
      if (!output.error.ok()) error_ = output.error.message();
    }
    changed_.notify_one();
  }

  static inline std::atomic<const Stream*> halted;
  static inline std::atomic<bool> may_go_on;

  Ops ops_ = CpuOps(Fp8Activations::kExact);
  Checkpoint checkpoint_ = Checkpoint::Open("models/tiny-r1").value();
  std::vector<std::unique_ptr<CpuDevice>> devices_;
  JoinedRanks joined_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::vector<TokenId>> tokens_;  // guarded by mutex_
  std::map<int64_t, std::vector<float>> logprobs_;  // guarded by mutex_
  size_t ended_ = 0;                                // guarded by mutex_
  std::string error_;                               // guarded by mutex_
  int64_t next_ = 0;
  std::optional<AssembledEngine> assembled_;
};

TEST(RanksTest, TensorParallelAnswersAsOneRankDoes) {
  const std::vector<int> prompts = {1, 2, 3, 4, 5, 6};
  const auto expected = RankedEngine({}).Answers(prompts);
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(RankedEngine({.tensor = ranks}).Answers(prompts), expected) << ranks << " ranks";
  }
}

TEST(RanksTest, NothingMoreIsAskedOfAnyRankOnceOneHasFailed) {
  for (const ParallelLayout& layout :
       {ParallelLayout{.tensor = 2}, ParallelLayout{.data = 2, .pipeline = 2, .experts = true}}) {
    RankedEngine engine(layout);
    const auto last = static_cast<size_t>(layout.world() - 1);
    engine.device(last).Abandon("a fault");
    EXPECT_EQ(engine.Answers({1}), (std::vector<std::vector<TokenId>>{{}}));
    EXPECT_EQ(engine.device(last).status().message(), "a fault");
    for (size_t rank = 0; rank < last; ++rank) {
      EXPECT_EQ(engine.device(rank).status().message(), "given up with a fault");
    }
  }
}

// A rank that does not come: requests end in time, whoever it is that waits for it, and are told
// rank, op, shape and step.
TEST(RanksTest, ARankThatDoesNotComeIsGivenUpAndNamed) {
  for (const size_t late : {0, 1}) {
    RankedEngine engine({.tensor = 2}, 0, {}, /*step_timeout_s=*/0.3);
    engine.Halt(late);
    EXPECT_EQ(engine.Answers({1}), (std::vector<std::vector<TokenId>>{{}}));
    const std::regex expected(fmt::format(
        "(given up with )?rank {} has waited 0.3 s for rank {} \\(in step 0, op [a-z_]+ "
        "of F32 \\[45, [0-9]+\\]\\)",
        1 - late, late));
    EXPECT_TRUE(std::regex_match(engine.error(), expected)) << engine.error();
    RankedEngine::GoOn();
  }
}

// Then the process does not wait for it either.
TEST(RanksDeathTest, ARankThatNeverComesBackDoesNotHoldTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto serve = [] {
    RankedEngine engine({.tensor = 2}, 0, {}, /*step_timeout_s=*/0.3);
    engine.Halt(1);
    engine.Answers({1});
  };
  EXPECT_EXIT(serve(), testing::ExitedWithCode(1),
              "rank 0 has waited 0.3 s for rank 1 .*; rank 1 does not come back, and is left");
}

// The bits of log-probabilities, not tokens alone.
TEST(RanksTest, TensorParallelHasTheSameBitsAloneAndInCompany) {
  RankedEngine alone({.tensor = 2}), together({.tensor = 2});
  for (const int prompt : {1, 2, 3, 4}) alone.Answers({prompt});
  together.Answers({1, 2, 3, 4});
  EXPECT_EQ(alone.LogprobsInOrder(), together.LogprobsInOrder());
  // The canary: another number of ranks has other bits.
  RankedEngine one({});
  one.Answers({1, 2, 3, 4});
  EXPECT_NE(together.LogprobsInOrder(), one.LogprobsInOrder());
}

// Groups that serve different requests, some of which have none at times, and experts anywhere:
// nothing shows in any bit.
TEST(RanksTest, DataAndExpertParallelHaveTheBitsOfOneRank) {
  const std::vector<int> prompts = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  RankedEngine one({});
  const auto expected = one.Answers(prompts);
  one.Answers({5});
  for (const int groups : {2, 3}) {
    for (const int64_t exchange_tokens : {0, 24}) {
      SCOPED_TRACE(testing::Message() << groups << " groups, " << exchange_tokens);
      RankedEngine ranked({.data = groups, .experts = true}, exchange_tokens);
      EXPECT_EQ(ranked.Answers(prompts), expected);
      ranked.Answers({5});
      EXPECT_EQ(ranked.logprobs(), one.logprobs());
    }
  }
}

// Experts over the ranks of tensor-parallel groups: bits are those of tensor parallel ranks, in any
// company.
TEST(RanksTest, ExpertsOverTensorParallelRanks) {
  const std::vector<int> prompts = {1, 2, 3, 4, 5, 6};
  RankedEngine one_group({.tensor = 2, .experts = true});
  const auto answers = one_group.Answers(prompts);
  EXPECT_EQ(answers, RankedEngine({}).Answers(prompts));
  RankedEngine two_groups({.tensor = 2, .data = 2, .experts = true}, /*exchange_tokens=*/24);
  EXPECT_EQ(two_groups.Answers(prompts), answers);
  EXPECT_EQ(two_groups.logprobs(), one_group.logprobs());
}

// Groups that cut each expert between them, so that tokens go to all ranks and their sums come
// back: the same bits alone and in company, in either group, however many travel at a time, and
// over stages. Not those of one rank, which is the canary.
TEST(RanksTest, GroupsThatCutExpertsHaveTheSameBitsAloneAndInCompany) {
  const std::vector<int> prompts = {1, 2, 3, 4, 5, 6};
  RankedEngine one({});
  const auto expected = one.Answers(prompts);
  for (const int tensor : {1, 2}) {
    SCOPED_TRACE(testing::Message() << "groups of " << tensor);
    const ParallelLayout layout{.tensor = tensor, .data = 2};
    RankedEngine together(layout), alone(layout), pieces(layout, /*exchange_tokens=*/24);
    EXPECT_EQ(together.Answers(prompts), expected);
    const auto bits = together.LogprobsInOrder();
    for (const int prompt : prompts) alone.Answers({prompt});
    EXPECT_EQ(alone.LogprobsInOrder(), bits);
    EXPECT_EQ(pieces.Answers(prompts), expected);
    EXPECT_EQ(pieces.LogprobsInOrder(), bits);
    RankedEngine staged({.tensor = tensor, .data = 2, .pipeline = 2});
    EXPECT_EQ(staged.Answers(prompts), expected);
    EXPECT_EQ(staged.LogprobsInOrder(), bits);
    EXPECT_NE(one.LogprobsInOrder(), bits);
  }
}

// Stages of the layers, with every stage's slots told what the last one drew: decodes, draws at
// random and log-probabilities of prompts in chunks have one rank's bits.
TEST(RanksTest, PipelineParallelHasTheBitsOfOneRank) {
  const std::vector<int> prompts = {1, 2, 3, 4, 5, 6};
  RankedEngine one({});
  const auto expected = one.Answers(prompts);
  one.Answers({5});
  for (const ParallelLayout& layout : {ParallelLayout{.pipeline = 2}, ParallelLayout{.pipeline = 6},
                                       ParallelLayout{.data = 2, .pipeline = 2, .experts = true}}) {
    SCOPED_TRACE(testing::Message() << layout.pipeline << " stages, " << layout.data << " groups");
    RankedEngine staged(layout);
    EXPECT_EQ(staged.Answers(prompts), expected);
    staged.Answers({5});
    EXPECT_EQ(staged.logprobs(), one.logprobs());
    // Every stage guesses and verifies alike.
    RankedEngine guessing(
        layout, 0,
        {.method = Speculation::Method::kNgram, .num_tokens = 3, .lookup_min = 1, .lookup_max = 3});
    EXPECT_EQ(guessing.Answers(prompts), expected);
  }
}

// A residual that stages hand on in BF16: bits of its own, the same alone and in company, and in
// groups with experts over them.
TEST(RanksTest, ARoundedResidualHasTheSameBitsAloneAndInCompany) {
  const std::vector<int> prompts = {1, 2, 3, 4};
  const ParallelLayout layout{.pipeline = 2, .bf16_residual = true};
  RankedEngine together(layout), alone(layout), exact({.pipeline = 2});
  together.Answers(prompts);
  for (const int prompt : prompts) alone.Answers({prompt});
  EXPECT_EQ(alone.LogprobsInOrder(), together.LogprobsInOrder());
  RankedEngine groups({.data = 2, .pipeline = 2, .experts = true, .bf16_residual = true});
  groups.Answers(prompts);
  EXPECT_EQ(groups.LogprobsInOrder(), together.LogprobsInOrder());
  exact.Answers(prompts);
  EXPECT_NE(exact.LogprobsInOrder(), together.LogprobsInOrder());
}

// The canary of the test above is the last line: bits of two ranks are not those of one.
TEST(RanksTest, StagesOfTensorParallelRanksHaveTheBitsOfThoseRanks) {
  const std::vector<int> prompts = {1, 2, 3, 4};
  RankedEngine ranks({.tensor = 2}), staged({.tensor = 2, .pipeline = 2}), one({});
  EXPECT_EQ(staged.Answers(prompts), ranks.Answers(prompts));
  EXPECT_EQ(staged.logprobs(), ranks.logprobs());
  one.Answers(prompts);
  EXPECT_NE(staged.logprobs(), one.logprobs());
}

}  // namespace
}  // namespace fathom
