// What a generation tells the metrics.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "server/completion_generation.h"

namespace fathom {
namespace {

class GenerationMetricsTest : public testing::Test {
 protected:
  void SetUp() override {
    static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("models/tiny-r1").value();
    GenerationSetup setup{
        .tokenizer = tokenizer.get(), .metrics = &metrics_, .clock = &clock_, .id = "id"};
    setup.prompts.push_back({.tokens = std::vector<TokenId>(70, TokenId{5}), .max_tokens = 100});
    generation_ = std::make_unique<CompletionGeneration>(std::move(setup));
  }
  // A token after so many seconds.
  void Output(int64_t after_s, RequestOutput news) {
    clock_.AdvanceNs(after_s * 1'000'000'000);
    news.tokens.push_back({TokenId{7}, {}});
    generation_->OnOutput(0, std::move(news), nullptr);
  }
  // Of a series by the beginning of its line.
  static double ValueOf(const std::string& metrics, const std::string& series) {
    const size_t at = metrics.find("\n" + series);
    return at == metrics.npos ? -1 : std::stod(metrics.substr(metrics.find("} ", at) + 2));
  }

  Metrics metrics_{"m"};
  VirtualClock clock_;
  std::unique_ptr<CompletionGeneration> generation_;
};

TEST_F(GenerationMetricsTest, TimesAndTokensOfARequest) {
  const RequestOutput first{.queued_ns = 2'000'000'000, .cached_tokens = 64};
  Output(5, first);
  Output(3, {.cached_tokens = 64, .preemptions = 2, .finish = FinishReason::kLength});
  const EngineStats stats{.groups = {{}, {}}, .tokens_of_steps = {.steps = {7, 1}, .tokens = 15}};
  const std::string metrics = metrics_.Render(stats, 0);
  const std::map<std::string, double> sums = {{"vllm:time_to_first_token_seconds", 5},
                                              {"vllm:e2e_request_latency_seconds", 8},
                                              {"vllm:request_queue_time_seconds", 2},
                                              {"vllm:request_prefill_time_seconds", 3},
                                              {"vllm:request_decode_time_seconds", 3},
                                              {"vllm:request_inference_time_seconds", 6},
                                              {"vllm:request_max_num_generation_tokens", 2},
                                              {"vllm:request_num_preemptions", 2},
                                              {"vllm:request_prompt_tokens", 70},
                                              {"vllm:request_prefill_kv_computed_tokens", 6},
                                              {"vllm:iteration_tokens_total", 15}};
  for (const auto& [name, sum] : sums) EXPECT_EQ(ValueOf(metrics, name + "_sum{"), sum) << name;
  EXPECT_EQ(ValueOf(metrics, "vllm:prompt_tokens_total{"), 70);
  EXPECT_EQ(ValueOf(metrics, "vllm:prompt_tokens_cached_total{"), 64);
  const std::string of = R"({engine="0",model_name="m",)";
  const std::string source = "vllm:prompt_tokens_by_source_total" + of + "source=";
  EXPECT_EQ(ValueOf(metrics, source + R"("local_compute")"), 6);
  EXPECT_EQ(ValueOf(metrics, source + R"("local_cache_hit")"), 64);
  EXPECT_EQ(ValueOf(metrics, source + R"("external_kv_transfer")"), 0);
  for (const char* engine : {"0", "1"}) {
    const auto state = [&](const char* name) {
      return ValueOf(metrics, fmt::format(R"(vllm:engine_sleep_state{{engine="{}",model_name="m",)"
                                          R"(sleep_state="{}"}})",
                                          engine, name));
    };
    EXPECT_EQ(state("awake"), 1);
    EXPECT_EQ(state("weights_offloaded"), 0);
    EXPECT_EQ(state("discard_all"), 0);
  }
  EXPECT_NE(metrics.find(R"(model_name="m",le="1.0"} 7)"), std::string::npos);
  EXPECT_EQ(metrics, metrics_.Render(stats, 0));
}

TEST_F(GenerationMetricsTest, BoundsOfBucketsAreWrittenAsVllmWritesThem) {
  const std::string metrics = Metrics(R"(m",le="5)").Render({}, 0);
  const std::string bucket =
      R"(vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m\",le=\"5",le=)";
  for (const char* bound : {"0.001", "0.75", "1.0", "2.5", "2560.0", "+Inf"}) {
    EXPECT_NE(metrics.find(fmt::format("\n{}\"{}\"}} 0\n", bucket, bound)), std::string::npos)
        << bound;
  }
  const std::string other = Metrics("m,le=").Render({}, 0);
  EXPECT_NE(other.find(R"(model_name="m,le=",le="1.0"} 0)"), std::string::npos);
  EXPECT_NE(other.find(R"(model_name="m,le="} 0)"), std::string::npos);
  EXPECT_NE(metrics.find(R"(le="200000.0"} 0)"), std::string::npos);
  EXPECT_TRUE(metrics.ends_with('\n'));
}

// Nothing is known of what it would have found.
TEST_F(GenerationMetricsTest, ARequestWithoutATokenComputedNoneThatIsCounted) {
  generation_->Fail(EngineError(Cancelled("it left")), "abort");
  const std::string metrics = metrics_.Render({}, 0);
  EXPECT_EQ(ValueOf(metrics, "vllm:request_prompt_tokens_sum{"), 70);
  EXPECT_EQ(ValueOf(metrics, "vllm:request_num_preemptions_count{"), 1);
  EXPECT_EQ(ValueOf(metrics, "vllm:request_prefill_kv_computed_tokens_count{"), 0);
}

}  // namespace
}  // namespace fathom
