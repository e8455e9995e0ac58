#include "model/synthetic_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace fathom {
namespace {

ModelConfig Config() {
  ModelConfig config;
  config.num_layers = 3;
  config.first_k_dense_replace = 1;
  config.n_routed_experts = 16;
  config.n_shared_experts = 1;
  config.num_experts_per_tok = 4;
  return config;
}

// How often each expert is drawn in one layer, of which every token has others, and the shared one.
std::vector<int> Count(const SyntheticRouting& routing, int64_t tokens, int layer, int group = 0) {
  const ModelConfig config = Config();
  const std::vector<int32_t> ids = routing.Draw(config, tokens, layer, group);
  EXPECT_EQ(ids.size(), static_cast<size_t>(5 * tokens));
  std::vector<int> counts(17);
  for (size_t t = 0; t < ids.size(); t += 5) {
    const std::set<int32_t> chosen(&ids[t], &ids[t] + 4);
    EXPECT_EQ(chosen.size(), 4u);
    EXPECT_LT(*chosen.rbegin(), 16);
    EXPECT_EQ(ids[t + 4], 16);
    for (size_t i = t; i < t + 5; ++i) ++counts[static_cast<size_t>(ids[i])];
  }
  return counts;
}

TEST(SyntheticRouting, UniformSharesAreEven) {
  const SyntheticRouting uniform = SyntheticRouting::Uniform(Config());
  const std::vector<int> counts = Count(uniform, 4000, 0);
  for (int expert = 0; expert < 16; ++expert) EXPECT_NEAR(counts[expert], 1000, 120) << expert;
  EXPECT_EQ(counts, Count(uniform, 4000, 0));
  EXPECT_NE(counts, Count(uniform, 4000, 1));
  EXPECT_NE(counts, Count(uniform, 4000, 0, 1));
  EXPECT_TRUE(uniform.Draw(Config(), 0, 0, 0).empty());
}

TEST(SyntheticRouting, ZipfFavoursOthersInEachLayer) {
  const SyntheticRouting zipf = SyntheticRouting::Zipf(Config());
  ASSERT_EQ(zipf.shares.size(), 2u);
  EXPECT_TRUE(zipf.Check(Config()).ok());
  EXPECT_NE(zipf.shares[0], zipf.shares[1]);
  for (int layer : {0, 1}) {
    const std::vector<double>& shares = zipf.shares[static_cast<size_t>(layer)];
    const std::vector<int> counts = Count(zipf, 4000, layer);
    const auto most = std::max_element(shares.begin(), shares.end()) - shares.begin();
    EXPECT_EQ(std::max_element(counts.begin(), counts.end() - 1) - counts.begin(), most);
    EXPECT_GT(counts[static_cast<size_t>(most)], 2500);  // of 4000 tokens
  }
}

TEST(SyntheticRouting, ExpertsWithoutAShareAreNeverDrawn) {
  SyntheticRouting routing = SyntheticRouting::Uniform(Config());
  for (int expert = 4; expert < 16; ++expert) routing.shares[0][expert] = 0;
  ASSERT_TRUE(routing.Check(Config()).ok());
  const std::vector<int> counts = Count(routing, 100, 0);
  EXPECT_EQ(std::vector<int>(counts.begin(), counts.begin() + 5),
            (std::vector<int>{100, 100, 100, 100, 0}));
}

TEST(SyntheticRouting, WhatDoesNotFitIsRefused) {
  const auto refused = [](const SyntheticRouting& routing, const ModelConfig& config = Config()) {
    return routing.Check(config).message();
  };
  const std::vector<double> even(16, 1.0);
  EXPECT_EQ(refused({.shares = {even, even, even}}),
            "--synthetic-routing: shares of 3 layers, the model has 2 with experts");
  EXPECT_EQ(refused({.shares = {{1, 2}}}),
            "--synthetic-routing: shares of 2 experts, the model has 16");
  const std::string numbers =
      "--synthetic-routing: shares are numbers from 0 to 1e15, and 4 or more of a layer's are "
      "above 0";
  for (const double bad : {-1.0, 1e16, std::nan("")}) {
    std::vector<double> shares = even;
    shares[7] = bad;
    EXPECT_EQ(refused({.shares = {shares}}), numbers);
  }
  std::vector<double> three(16);
  three[1] = three[2] = three[3] = 1;
  EXPECT_EQ(refused({.shares = {three}}), numbers);
  ModelConfig dense = Config();
  dense.n_routed_experts = 0;
  EXPECT_EQ(refused(SyntheticRouting::Uniform(dense), dense),
            "--synthetic-routing: the model has no experts");
}

}  // namespace
}  // namespace fathom
