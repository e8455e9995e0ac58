// Engines of several ranks on a CPU: tiny-r1, alone and in company.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "cpu/cpu_device.h"
#include "engine/assembly.h"
#include "parallel/shared_memory.h"

namespace fathom {
namespace {

// An engine cut over so many tensor-parallel ranks, and what it answered.
class RankedEngine {
 public:
  explicit RankedEngine(int ranks) {
    auto group = SharedMemoryCommunicator::Group(ranks);
    std::vector<EngineRank> places;
    for (int rank = 0; rank < ranks; ++rank) {
      devices_.push_back(std::make_unique<CpuDevice>(1));
      group_.push_back(std::move(group[static_cast<size_t>(rank)]));
      places.push_back({devices_.back().get(),
                        {.layout = {.tensor = ranks},
                         .tensor_rank = rank,
                         .tensor_group = ranks == 1 ? nullptr : group_.back().get()}});
    }
    EngineLimits limits{.max_model_len = 256, .max_num_seqs = 8, .prefill_chunk = 64};
    limits.FillDefaults(/*gpu=*/false);
    assembled_.emplace(AssembleEngine(checkpoint_, CpuOps(Fp8Activations::kExact), places,
                                      {.limits = limits},
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
  // Of all tokens so far.
  std::map<int64_t, std::vector<float>> logprobs() const { return logprobs_; }

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
    }
    changed_.notify_one();
  }

  Checkpoint checkpoint_ = Checkpoint::Open("models/tiny-r1").value();
  std::vector<std::unique_ptr<CpuDevice>> devices_;
  std::vector<std::unique_ptr<Communicator>> group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::vector<TokenId>> tokens_;  // guarded by mutex_
  std::map<int64_t, std::vector<float>> logprobs_;  // guarded by mutex_
  size_t ended_ = 0;                                // guarded by mutex_
  int64_t next_ = 0;
  std::optional<AssembledEngine> assembled_;
};

TEST(RanksTest, TensorParallelAnswersAsOneRankDoes) {
  const std::vector<int> prompts = {1, 2, 3, 4, 5, 6};
  const auto expected = RankedEngine(1).Answers(prompts);
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(RankedEngine(ranks).Answers(prompts), expected) << ranks << " ranks";
  }
}

// The bits of log-probabilities, not tokens alone.
TEST(RanksTest, TensorParallelHasTheSameBitsAloneAndInCompany) {
  RankedEngine alone(2), together(2);
  for (const int prompt : {1, 2, 3, 4}) alone.Answers({prompt});
  together.Answers({1, 2, 3, 4});
  std::vector<std::vector<float>> a, b;
  for (const auto& [id, logprobs] : alone.logprobs()) a.push_back(logprobs);
  for (const auto& [id, logprobs] : together.logprobs()) b.push_back(logprobs);
  EXPECT_EQ(a, b);
  // The canary: another number of ranks has other bits.
  RankedEngine one(1);
  one.Answers({1, 2, 3, 4});
  std::vector<std::vector<float>> c;
  for (const auto& [id, logprobs] : one.logprobs()) c.push_back(logprobs);
  EXPECT_NE(b, c);
}

}  // namespace
}  // namespace fathom
