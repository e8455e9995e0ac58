#include "engine/memory_plan.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr int64_t kPageBytes = 1 << 20;

TEST(MemoryPlan, HoldsEveryRequestWhereThatIsAffordable) {
  const auto plan = PlanMemory({.page_bytes = kPageBytes, .max_model_len = 129, .max_num_seqs = 7});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_pages, 21);  // 3 pages of 64 each
  EXPECT_NE(plan->ToString().find("(1344 tokens: 7 x 129, more could not be used, "),
            std::string::npos);
}

TEST(MemoryPlan, KeepsToTheBytesGiven) {
  const auto plan = PlanMemory({.page_bytes = kPageBytes,
                                .max_model_len = 640,
                                .max_num_seqs = 100,
                                .kv_cache_bytes = 12 * kPageBytes + 5});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_pages, 12);
  EXPECT_EQ(plan->kv_cache_bytes(), 12 * kPageBytes);
  EXPECT_NE(plan->ToString().find("(768 tokens, 65536 per GiB)"), std::string::npos);
}

TEST(MemoryPlan, SaysWhenBytesThatWereAskedForHaveNoUse) {
  MemoryNeeds needs{.page_bytes = kPageBytes, .max_model_len = 129, .max_num_seqs = 1};
  EXPECT_EQ(PlanMemory(needs)->UnusedCache(), "");  // nothing was asked for
  needs.kv_cache_bytes = 4 * kPageBytes - 1;        // less than a page too many
  EXPECT_EQ(PlanMemory(needs)->UnusedCache(), "");
  needs.kv_cache_bytes = 4 * kPageBytes;
  const auto plan = PlanMemory(needs);
  EXPECT_EQ(plan->kv_cache_bytes(), 3 * kPageBytes);
  EXPECT_EQ(plan->UnusedCache().find("--kv-cache-memory-bytes 4194304: the KV cache takes 3145728 "
                                     "of them, for 1 request of at most 129 tokens"),
            0);
}

TEST(MemoryPlan, WithPrefixCachingAllBytesThatWereAskedForHaveUse) {
  MemoryNeeds needs{
      .page_bytes = kPageBytes, .max_model_len = 129, .max_num_seqs = 1, .prefix_caching = true};
  EXPECT_EQ(PlanMemory(needs)->num_pages, 3);
  EXPECT_NE(PlanMemory(needs)->ToString().find("(192 tokens: 1 x 129, "), std::string::npos);
  needs.kv_cache_bytes = 20 * kPageBytes;
  EXPECT_EQ(PlanMemory(needs)->num_pages, 20);
  EXPECT_EQ(PlanMemory(needs)->UnusedCache(), "");
}

TEST(MemoryPlan, RefusesACacheTooSmallForOneRequest) {
  const auto plan = PlanMemory({.page_bytes = kPageBytes,
                                .max_model_len = 640,
                                .max_num_seqs = 1,
                                .kv_cache_bytes = 9 * kPageBytes});
  EXPECT_EQ(plan.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(plan.status().message().find("lower that to 576"), std::string::npos);
}

TEST(MemoryPlan, RefusesWhatTheMachineHasNot) {
  MemoryNeeds needs{.items = {{.name = "weights", .bytes = 100 << 20},
                              {.name = "activations", .lowered_by = "--max-num-batched-tokens"},
                              {.name = "state", .bytes = 52000, .lowered_by = "--max-num-seqs"}},
                    .page_bytes = kPageBytes,
                    .max_model_len = 64,
                    .max_num_seqs = 4};
  needs.memory_bytes = (104 << 20) + 52000;
  EXPECT_TRUE(PlanMemory(needs).ok());
  --needs.memory_bytes;
  EXPECT_EQ(PlanMemory(needs).status().code(), StatusCode::kResourceExhausted);
  needs.memory_bytes += 1 << 30;
  needs.items[1].bytes = size_t{2} << 30;  // of steps too long for this machine
  const std::string message = PlanMemory(needs).status().message();
  EXPECT_NE(message.find("activations 2.00 GiB"), std::string::npos) << message;
  EXPECT_NE(message.find("Lower --max-num-batched-tokens, --max-num-seqs, --max-model-len or "
                         "--kv-cache-memory-bytes, or"),
            std::string::npos)
      << message;
  needs.kv_cache_bytes = int64_t{500} << 30;  // that was asked for, and is the most
  const std::string cache = PlanMemory(needs).status().message();
  EXPECT_NE(cache.find("Lower --kv-cache-memory-bytes, --max-num-batched-tokens, --max-num-seqs or "
                       "--max-model-len, or"),
            std::string::npos)
      << cache;
}

// Whoever plans for ranks adds what they need; it counts, and stands in the plan.
TEST(MemoryPlan, TakesAnyItem) {
  MemoryNeeds needs{.items = {{.name = "weights", .bytes = size_t{1} << 30}},
                    .page_bytes = kPageBytes,
                    .max_model_len = 64,
                    .max_num_seqs = 1};
  const int64_t before = PlanMemory(needs)->total_bytes();
  needs.items.push_back({.name = "exchange arena", .bytes = size_t{1} << 29});
  needs.items.push_back({.name = "work space"});
  const auto plan = PlanMemory(needs);
  EXPECT_EQ(plan->total_bytes() - before, int64_t{1} << 29);
  EXPECT_EQ(plan->ToString(),
            "weights 1.00 GiB, KV cache 0.00 GiB (64 tokens: 1 x 64, more could not be used, 65536 "
            "per GiB), exchange arena 0.50 GiB, work space not yet measured");
}

// 5 layers of V3 as an H200 serves them by default: all but a tenth is spoken for.
TEST(MemoryPlan, OnAGpuTheCacheHasWhatWorkSpaceLeaves) {
  constexpr int64_t kMemory = int64_t{1398} << 30;
  MemoryNeeds needs{.items = {{.name = "weights", .bytes = size_t{17} << 30},
                              {.name = "activations", .bytes = size_t{3} << 30},
                              {.name = "work space"}},
                    .page_bytes = 5 * 64 * 576 * 2,
                    .max_model_len = 163840,
                    .max_num_seqs = 256,
                    .memory_bytes = kMemory / 10,
                    .memory_is_ours = true};
  const auto before = PlanMemory(needs);
  ASSERT_TRUE(before.ok());
  EXPECT_NE(before->ToString().find("work space not yet measured"), std::string::npos);
  needs.items.back().bytes = size_t{2} << 30;
  const auto plan = PlanMemory(needs);
  ASSERT_TRUE(plan.ok());
  EXPECT_NE(plan->ToString().find("work space 2.00 GiB"), std::string::npos) << plan->ToString();
  EXPECT_LE(plan->total_bytes(), kMemory / 100 * 9);
  EXPECT_GT(plan->total_bytes(), kMemory / 100 * 9 - needs.page_bytes - 100);
  EXPECT_LT(plan->num_pages, before->num_pages);
  needs.items.back().bytes = size_t{120} << 30;
  EXPECT_EQ(PlanMemory(needs).status().code(), StatusCode::kResourceExhausted);
}

// Not what the cache would need: without any it would not fit either.
TEST(MemoryPlan, WhatIsTooMuchWithoutACacheIsSaidSo) {
  const Result<MemoryPlan> plan = PlanMemory({.items = {{.name = "weights", .bytes = 2000}},
                                              .page_bytes = 100,
                                              .max_model_len = 128,
                                              .max_num_seqs = 1,
                                              .kv_cache_bytes = 100,
                                              .memory_bytes = 1000});
  EXPECT_NE(plan.status().message().find("GiB are needed"), std::string::npos);
}

}  // namespace
}  // namespace fathom
