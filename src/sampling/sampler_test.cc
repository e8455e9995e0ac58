#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/cpu_device.h"

namespace fathom {
namespace {

constexpr int64_t kVocab = 6, kHidden = 4;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Logits = std::vector<std::vector<float>>;  // [logit vectors][vocab]

std::vector<TokenId> Ids(std::initializer_list<int32_t> ids) {
  std::vector<TokenId> tokens;
  for (const int32_t id : ids) tokens.push_back(TokenId{id});
  return tokens;
}

// Log-softmax, by the definition.
float LogProb(const std::vector<float>& logits, size_t token) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  return static_cast<float>(double{logits[token]} - std::log(sum));
}

// On every table.
class SamplerTest : public testing::TestWithParam<const Ops*> {
 protected:
  void Open(int32_t slot, const SamplingParams& params, int32_t min_tokens = 0,
            const std::vector<TokenId>& generated = {}) {
    auto request = std::make_shared<RequestParams>();
    request->prompt = Ids({2});
    request->sampling = params;
    request->stop_tokens = Ids({1});
    request->min_tokens = min_tokens;
    slots_.Open({.slot = SlotId{slot}, .params = request, .generated = generated});
  }
  // Draws from these logits in one pass: vector i for slots[i], with positions[i] for the new
  // token.
  std::vector<std::optional<TokenId>> Pass(const Logits& logits, const std::vector<int32_t>& slots,
                                           std::vector<int32_t> positions) {
    const auto vectors = static_cast<int32_t>(logits.size());
    std::vector<int32_t> index, begin;
    for (int32_t vector = 0; vector < vectors; ++vector) index.push_back(vector);
    for (int32_t vector = 0; vector <= vectors; ++vector) begin.push_back(vector);
    for (int32_t& position : positions) --position;
    const std::vector<int32_t> firsts(logits.size(), 0);  // each of a row of its own
    pass_ = {.index = Ints(index), .ordinal = Ints(firsts), .live = Ints({vectors})};
    sampler_.Gather(pass_, hidden_);
    float* to = static_cast<float*>(sampler_.logits(pass_).data());
    for (const auto& vector : logits) to = std::copy(vector.begin(), vector.end(), to);
    token_slot_ = Ints(slots);
    sampler_.Sample(pass_, 0, {.slots = token_slot_, .positions = Ints(positions)}, slots_.state());
    Sampler::Drawn drawn;
    const RowTensors rows{.count = Ints(std::vector<int32_t>(logits.size(), 1)),
                          .logit_begin = Ints(begin)};
    sampler_.Download(rows, vectors, vectors, drawn);
    std::vector<std::optional<TokenId>> tokens;
    for (size_t vector = 0; vector < logits.size(); ++vector) tokens.push_back(drawn.token(vector));
    return tokens;
  }
  Sampler::PassLogprobs OfDrawn(Sampler::LogprobWidths widths, int64_t first = 0) {
    Sampler::PassLogprobs logprobs;
    sampler_.LogProbsOfDrawn(pass_, first, widths, token_slot_, slots_.state(), logprobs);
    device_.WaitFor(device_.Mark());
    return logprobs;
  }
  Sampler::PassLogprobs OfGiven(std::span<const TokenId> tokens, int32_t top) {
    Sampler::PassLogprobs logprobs;
    sampler_.LogProbs(pass_, tokens, top, logprobs);
    device_.WaitFor(device_.Mark());
    return logprobs;
  }
  // Of the pass's first vector.
  TokenLogprobs LogProbs(std::span<const TokenId> tokens, int32_t top) {
    return (tokens.empty() ? OfDrawn({.top = top}) : OfGiven(tokens, top)).vector(0, top);
  }
  TensorView Ints(std::vector<int32_t> values) {
    kept_.push_back(std::make_unique<std::vector<int32_t>>(std::move(values)));
    return TensorView(kept_.back()->data(), DType::kI32,
                      {static_cast<int64_t>(kept_.back()->size())});
  }
  template <class T>
  T At(const TensorView& view, int64_t index) {
    return static_cast<const T*>(view.data())[index];
  }

  const Ops& ops_ = *GetParam();
  CpuDevice device_{2};
  Slots slots_{{.slots = 4, .vocab = kVocab, .max_pages = 1}, device_};
  Sampler sampler_{
      {.logit_vectors = 3, .pass_vectors = 3, .vocab = kVocab, .hidden = kHidden}, ops_, device_};
  LogitPass pass_;         // the last one
  TensorView token_slot_;  // of it
  std::unique_ptr<DeviceMemory> memory_ = device_.Allocate(256);
  TensorView hidden_{memory_->data(), ops_.activation, {3, kHidden}};
  std::vector<std::unique_ptr<std::vector<int32_t>>> kept_;
};

INSTANTIATE_TEST_SUITE_P(All, SamplerTest,
                         testing::Values(&ReferenceOps(Fp8Activations::kExact),
                                         &CpuOps(Fp8Activations::kExact)),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(SamplerTest, GreedyTakesTheLikeliestAndTheLowerOfEqualOnes) {
  Open(0, {.temperature = 0});
  Open(3, {.temperature = 0});
  const auto tokens = Pass({{0, 1, 2, 3, 2, 1}, {5, 0, 0, 5, 0, 0}}, {3, 0}, {7, 8});
  EXPECT_EQ(tokens, (std::vector<std::optional<TokenId>>{TokenId{3}, TokenId{0}}));
}

TEST_P(SamplerTest, BiasesMoveTheTokenAndNotTheLogProbabilities) {
  const std::vector<float> vector = {0, 1, 2, 3, 2.5, 1};
  Open(0, {.temperature = 0, .logit_bias = {{TokenId{5}, 50.0f}}});
  EXPECT_EQ(Pass({vector}, {0}, {1})[0], TokenId{5});
  const TokenLogprobs drawn = LogProbs({}, 2);
  EXPECT_NEAR(drawn.logprob, LogProb(vector, 5), 1e-5);
  ASSERT_EQ(drawn.top.size(), 2u);
  EXPECT_EQ(drawn.top[0].first, TokenId{3});
  EXPECT_NEAR(drawn.top[0].second, LogProb(vector, 3), 1e-5);
  EXPECT_EQ(drawn.top[1].first, TokenId{4});
  EXPECT_EQ(LogProbs({}, kMaxTopLogprobs).top.size(), size_t{kVocab});
  // Those of given tokens are of logits() as it is, and leave alone what was kept.
  std::copy(vector.begin(), vector.end(), static_cast<float*>(sampler_.logits(pass_).data()));
  const TokenLogprobs given = LogProbs(Ids({2}), 0);
  EXPECT_NEAR(given.logprob, LogProb(vector, 2), 1e-5);
  EXPECT_TRUE(given.top.empty());
  EXPECT_EQ(LogProbs({}, 2).logprob, drawn.logprob);
}

// Logits that nobody asks for are not copied, and what was kept before stays.
TEST_P(SamplerTest, LogitsAreKeptOfAsManyVectorsAsThePassSays) {
  const std::vector<float> first = {0, 9, 2, 3, 2, 1}, second = {1, 2, 3, 8, 2, 1};
  Open(0, {.temperature = 0, .logit_bias = {{TokenId{5}, 50.0f}}});
  EXPECT_EQ(Pass({first, first}, {0, 0}, {1, 1})[1], TokenId{5});
  const Sampler::PassLogprobs kept = OfDrawn({.top = 1});
  for (const int32_t more : {0, 1}) {
    float* const logits = static_cast<float*>(sampler_.logits(pass_).data());
    for (const int64_t at : {int64_t{0}, kVocab}) std::ranges::copy(second, logits + at);
    pass_.kept = Ints({more});
    sampler_.Sample(pass_, 0, {.slots = token_slot_, .positions = Ints({0, 0})}, slots_.state());
    const Sampler::PassLogprobs now = OfDrawn({.top = 1});
    EXPECT_EQ(now.vector(1, 0).logprob, kept.vector(1, 0).logprob);
    EXPECT_NEAR(now.vector(0, 0).logprob, LogProb(more == 0 ? first : second, 5), 1e-5);
  }
}

TEST_P(SamplerTest, VectorsOfAPassHaveAsManyLikeliestAsEachWants) {
  const std::vector<float> first = {0, 1, 2, 3, 2.5, 1}, second = {4, 0, 3, 1, 2, -1};
  Open(0, {.temperature = 0});
  Open(1, {.temperature = 0});
  Pass({first, second}, {0, 1}, {1, 1});
  const Sampler::PassLogprobs logprobs = OfDrawn({.top = 5});
  const TokenLogprobs wide = logprobs.vector(0, 5), narrow = logprobs.vector(1, 1),
                      all = logprobs.vector(1, 5);
  ASSERT_EQ(wide.top.size(), 5u);
  EXPECT_EQ(wide.top[4].first, TokenId{5});
  EXPECT_NEAR(narrow.logprob, LogProb(second, 0), 1e-5);
  ASSERT_EQ(narrow.top.size(), 1u);
  EXPECT_EQ(narrow.top[0].first, TokenId{0});
  EXPECT_NEAR(narrow.top[0].second, LogProb(second, 0), 1e-5);
  ASSERT_EQ(all.top.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    constexpr int32_t kOrder[] = {0, 2, 4, 3, 1};
    EXPECT_EQ(all.top[i].first, TokenId{kOrder[i]});
    EXPECT_NEAR(all.top[i].second, LogProb(second, static_cast<size_t>(kOrder[i])), 1e-5);
  }
}

TEST_P(SamplerTest, GivenTokensAreEachOfItsVector) {
  const std::vector<float> first = {0, 1, 2, 3, 2.5, 1}, second = {4, 0, 3, 1, 2, -1};
  Pass({first, second}, {0, 1}, {1, 1});
  const Sampler::PassLogprobs logprobs = OfGiven(Ids({1, 3}), 1);
  EXPECT_NEAR(logprobs.vector(0, 1).logprob, LogProb(first, 1), 1e-5);
  EXPECT_NEAR(logprobs.vector(1, 1).logprob, LogProb(second, 3), 1e-5);
  EXPECT_EQ(logprobs.vector(1, 1).top.at(0).first, TokenId{0});
}

TEST_P(SamplerTest, NamedTokensAreThoseOfEachVectorsRequestInItsOrder) {
  const std::vector<float> first = {0, 1, 2, 3, 2.5, 1}, second = {4, 0, 3, 1, 2, -1};
  const std::vector<TokenId> of_first = Ids({5, 0, 3}), of_second = Ids({1});
  Open(0, {.temperature = 0, .logprobs = 0, .logprob_token_ids = of_first});
  Open(1, {.temperature = 0, .logprobs = 2});
  Open(3, {.temperature = 0, .logprobs = 0, .logprob_token_ids = of_second});
  Pass({second, first, second}, {3, 0, 1}, {1, 1, 1});
  const Sampler::PassLogprobs logprobs = OfDrawn({.top = 2, .named = 3});
  const auto expect = [&](size_t vector, const std::vector<TokenId>& ids,
                          const std::vector<float>& logits) {
    const TokenLogprobs got = logprobs.vector(vector, ids);
    ASSERT_EQ(got.top.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(got.top[i].first, ids[i]);
      EXPECT_NEAR(got.top[i].second, LogProb(logits, static_cast<size_t>(Raw(ids[i]))), 1e-5);
    }
  };
  expect(0, of_second, second);
  expect(1, of_first, first);
  const TokenLogprobs likeliest = logprobs.vector(2, 2);
  ASSERT_EQ(likeliest.top.size(), 2u);
  EXPECT_EQ(likeliest.top[1].first, TokenId{2});
  EXPECT_EQ(likeliest.logprob, likeliest.top[0].second);
}

TEST_P(SamplerTest, ALaterPassHasTheLogProbabilitiesOfItsOwnTokens) {
  const std::vector<float> first = {0, 9, 2, 3, 2, 1}, second = {1, 2, 3, 8, 2, 1};
  Open(0, {.temperature = 0});
  EXPECT_EQ(Pass({first}, {0}, {1})[0], TokenId{1});
  std::copy(second.begin(), second.end(), static_cast<float*>(sampler_.logits(pass_).data()));
  sampler_.Sample(pass_, 1, {.slots = Ints({0}), .positions = Ints({0})}, slots_.state());
  EXPECT_NEAR(OfDrawn({}, /*first=*/1).vector(0, 0).logprob, LogProb(second, 3), 1e-5);
}

TEST_P(SamplerTest, PenaltiesCountWhatWasGenerated) {
  Open(0, {.temperature = 0, .frequency_penalty = 1}, 0, Ids({3, 3}));
  Open(1, {.temperature = 0, .repetition_penalty = 4});  // token 2 is in the prompt
  const auto tokens = Pass({{0, 1, 2, 3.5, 0, 0}, {0, 1, 3, 0, 0, 0}}, {0, 1}, {4, 4});
  EXPECT_EQ(tokens, (std::vector<std::optional<TokenId>>{TokenId{2}, TokenId{1}}));
}

TEST_P(SamplerTest, AVectorWithNanHasNoTokenAndTheOthersHave) {
  for (int32_t slot = 0; slot < 3; ++slot) Open(slot, {.temperature = 0});
  const auto tokens =
      Pass({{0, 9, 0, 0, 0, 0}, {0, kNan, 0, 9, 0, 0}, {0, 0, 0, 0, 9, 0}}, {0, 1, 2}, {1, 1, 1});
  EXPECT_EQ(tokens, (std::vector<std::optional<TokenId>>{TokenId{1}, std::nullopt, TokenId{4}}));
}

TEST_P(SamplerTest, ADrawDependsOnSeedAndPositionAlone) {
  const std::vector<float> flat(kVocab, 0.0f);
  std::vector<TokenId> alone;
  Open(0, {.seed = 42});
  for (int32_t at = 0; at < 50; ++at) alone.push_back(*Pass({flat}, {0}, {at})[0]);
  EXPECT_GT(std::count(alone.begin(), alone.end(), TokenId{0}), 1);
  EXPECT_LT(std::count(alone.begin(), alone.end(), TokenId{0}), 30);
  Open(1, {.seed = 7});
  Open(2, {.seed = 42});
  size_t others_differ = 0;
  for (int32_t at = 0; at < 50; ++at) {
    const auto tokens = Pass({flat, flat}, {1, 2}, {at, at});
    EXPECT_EQ(*tokens[1], alone[static_cast<size_t>(at)]);
    others_differ += *tokens[0] != *tokens[1];
  }
  EXPECT_GT(others_differ, 20u);
}

TEST_P(SamplerTest, CommitAdvancesASlotUntilItsStopTokenMayCome) {
  const std::vector<float> stop_is_likeliest = {0, 9, 0, 0, 5, 0};
  Open(2, {.temperature = 0}, /*min_tokens=*/1);
  const auto pass = [&](int32_t position, int32_t tokens, int32_t samples) {
    const auto token = Pass({stop_is_likeliest}, {2}, {position + tokens})[0];
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < tokens; ++i) positions.push_back(position + i);
    sampler_.Commit({.slot = Ints({2}),
                     .begin = Ints({0, tokens}),
                     .count = Ints({tokens}),
                     .logit_begin = Ints({0, samples}),
                     .live = Ints({1})},
                    Ints(positions), slots_.state());
    return token;
  };
  const SlotState& state = slots_.state();
  pass(0, 3, 0);  // a chunk of the prompt: nothing is sampled
  EXPECT_EQ(At<int32_t>(state.length, 2), 3);
  EXPECT_EQ(At<int32_t>(state.generated, 2), 0);
  EXPECT_EQ(At<int32_t>(state.last_token, 2), 0);
  EXPECT_EQ(pass(3, 2, 1), TokenId{4});
  EXPECT_EQ(At<int32_t>(state.length, 2), 5);
  EXPECT_EQ(At<int32_t>(state.generated, 2), 1);
  EXPECT_EQ(At<int32_t>(state.last_token, 2), 4);
  EXPECT_EQ(At<int32_t>(state.counts.At(2), 4), 1);
  EXPECT_EQ(At<int32_t>(state.ended, 2), 0);
  EXPECT_EQ(pass(5, 1, 1), TokenId{1});
  EXPECT_EQ(At<int32_t>(state.ended, 2), 1);
  EXPECT_EQ(At<int32_t>(state.counts.At(2), 1), 1);
  EXPECT_EQ(At<int32_t>(state.length, 1), 0);  // another slot
}

}  // namespace
}  // namespace fathom
