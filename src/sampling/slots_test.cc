#include "sampling/slots.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cpu/cpu_device.h"

namespace fathom {
namespace {

constexpr int32_t kVocab = 8;

template <class T>
std::vector<T> OfSlot(const TensorView& view, int64_t slot) {
  const TensorView entry = view.At(slot);
  std::vector<T> values(static_cast<size_t>(entry.elements()));
  std::memcpy(values.data(), entry.data(), values.size() * sizeof(T));
  return values;
}

template <class T>
T One(const TensorView& view, int64_t slot) {
  return static_cast<const T*>(view.data())[slot];
}

std::vector<TokenId> Ids(std::initializer_list<int32_t> ids) {
  std::vector<TokenId> tokens;
  for (const int32_t id : ids) tokens.push_back(TokenId{id});
  return tokens;
}

std::shared_ptr<const RequestParams> Request(RequestParams params) {
  return std::make_shared<const RequestParams>(std::move(params));
}

class SlotsTest : public testing::Test {
 protected:
  CpuDevice device_{1};
  Slots slots_{{.slots = 3, .vocab = kVocab, .max_pages = 4}, device_};
  const SlotState& state_ = slots_.state();
};

TEST_F(SlotsTest, ARequestFindsWhatItAskedFor) {
  const SamplingParams params{.temperature = 0.5f,
                              .top_k = 7,
                              .top_p = 0.25f,
                              .min_p = 0.125f,
                              .presence_penalty = -1,
                              .frequency_penalty = 2,
                              .repetition_penalty = 1.5f,
                              .seed = 0x123456789abcdef0,
                              .logprob_token_ids = Ids({7, 0}),
                              .logit_bias = {{TokenId{3}, 4.0f}, {TokenId{5}, -100.0f}}};
  slots_.Open({.slot = SlotId{1},
               .params = Request({.prompt = Ids({0, 1, 1}),
                                  .sampling = params,
                                  .stop_tokens = Ids({2, 6}),
                                  .min_tokens = 9}),
               .generated = Ids({4, 4, 7}),
               .length = 64,
               .final_length = 99});
  EXPECT_EQ(One<int32_t>(state_.last_token, 1), 0);
  EXPECT_EQ(One<int32_t>(state_.length, 1), 64);
  EXPECT_EQ(One<int32_t>(state_.final_length, 1), 99);
  EXPECT_EQ(One<int32_t>(state_.generated, 1), 3);
  EXPECT_EQ(One<int32_t>(state_.min_tokens, 1), 9);
  EXPECT_EQ(One<int32_t>(state_.top_k, 1), 7);
  EXPECT_EQ(One<float>(state_.temperature, 1), 0.5f);
  EXPECT_EQ(One<float>(state_.top_p, 1), 0.25f);
  EXPECT_EQ(One<float>(state_.min_p, 1), 0.125f);
  EXPECT_EQ(One<float>(state_.presence, 1), -1.0f);
  EXPECT_EQ(One<float>(state_.frequency, 1), 2.0f);
  EXPECT_EQ(One<float>(state_.repetition, 1), 1.5f);
  EXPECT_EQ(OfSlot<uint32_t>(state_.seed, 1), (std::vector<uint32_t>{0x9abcdef0, 0x12345678}));
  std::vector<int32_t> stops(kMaxStopTokens, -1), bias_ids(kMaxLogitBias, -1);
  std::vector<int32_t> named(kMaxLogprobTokenIds, -1);
  named[0] = 7;
  named[1] = 0;
  EXPECT_EQ(OfSlot<int32_t>(state_.logprob_ids, 1), named);
  stops[0] = 2;
  stops[1] = 6;
  bias_ids[0] = 3;
  bias_ids[1] = 5;
  EXPECT_EQ(OfSlot<int32_t>(state_.stop_tokens, 1), stops);
  EXPECT_EQ(OfSlot<int32_t>(state_.bias_ids, 1), bias_ids);
  EXPECT_EQ(OfSlot<float>(state_.bias_values, 1)[0], 4.0f);
  EXPECT_EQ(OfSlot<float>(state_.bias_values, 1)[1], -100.0f);
  EXPECT_EQ(OfSlot<int32_t>(state_.counts, 1), (std::vector<int32_t>{0, 0, 0, 0, 2, 0, 0, 1}));
  EXPECT_EQ(OfSlot<uint8_t>(state_.in_prompt, 1), (std::vector<uint8_t>{1, 1, 0, 0, 0, 0, 0, 0}));
  for (const int64_t other : {0, 2}) {
    EXPECT_EQ(One<float>(state_.temperature, other), 0.0f);
    EXPECT_EQ(OfSlot<int32_t>(state_.counts, other), std::vector<int32_t>(kVocab));
    EXPECT_EQ(OfSlot<uint8_t>(state_.in_prompt, other), std::vector<uint8_t>(kVocab));
  }
}

TEST_F(SlotsTest, NothingIsLeftOfTheRequestBefore) {
  const SamplingParams first{
      .seed = ~uint64_t{0}, .logprob_token_ids = Ids({4}), .logit_bias = {{TokenId{3}, 4.0f}}};
  slots_.Open(
      {.slot = SlotId{0},
       .params = Request(
           {.prompt = Ids({1}), .sampling = first, .stop_tokens = Ids({2}), .min_tokens = 5}),
       .generated = Ids({2}),
       .length = 7});
  // As the steps between leave them.
  static_cast<int32_t*>(state_.ended.data())[0] = 1;
  static_cast<int32_t*>(state_.num_drafts.data())[0] = 1;
  slots_.Open({.slot = SlotId{0}, .params = Request({.prompt = Ids({5})})});
  EXPECT_EQ(One<int32_t>(state_.length, 0), 0);
  EXPECT_EQ(One<int32_t>(state_.ended, 0), 0);
  EXPECT_EQ(One<int32_t>(state_.num_drafts, 0), 0);
  EXPECT_EQ(One<int32_t>(state_.generated, 0), 0);
  EXPECT_EQ(One<int32_t>(state_.min_tokens, 0), 0);
  EXPECT_EQ(OfSlot<uint32_t>(state_.seed, 0), std::vector<uint32_t>(2));
  EXPECT_EQ(OfSlot<int32_t>(state_.stop_tokens, 0), std::vector<int32_t>(kMaxStopTokens, -1));
  EXPECT_EQ(OfSlot<int32_t>(state_.bias_ids, 0), std::vector<int32_t>(kMaxLogitBias, -1));
  EXPECT_EQ(OfSlot<int32_t>(state_.logprob_ids, 0), std::vector<int32_t>(kMaxLogprobTokenIds, -1));
  EXPECT_EQ(OfSlot<int32_t>(state_.counts, 0), std::vector<int32_t>(kVocab));
  EXPECT_EQ(OfSlot<uint8_t>(state_.in_prompt, 0), (std::vector<uint8_t>{0, 0, 0, 0, 0, 1, 0, 0}));
}

TEST_F(SlotsTest, PagesAreAppended) {
  slots_.SetPages(SlotId{2}, 0, std::vector<PageId>{PageId{9}, PageId{8}});
  slots_.SetPages(SlotId{2}, 2, std::vector<PageId>{PageId{7}});
  slots_.SetPages(SlotId{1}, 3, std::vector<PageId>{PageId{6}});
  EXPECT_EQ(OfSlot<int32_t>(state_.page_table, 2), (std::vector<int32_t>{9, 8, 7, 0}));
  EXPECT_EQ(OfSlot<int32_t>(state_.page_table, 1), (std::vector<int32_t>{0, 0, 0, 6}));
}

TEST_F(SlotsTest, AMaskIsOfItsSlotAndGoesWithItsRequest) {
  for (int slot = 0; slot < 3; ++slot) {
    slots_.Open({.slot = SlotId{slot}, .params = Request({.prompt = Ids({0})})});
    EXPECT_EQ(One<int32_t>(state_.masked, slot), 0);
  }
  slots_.SetMasks(SlotId{1}, std::vector<uint32_t>{0x81});
  EXPECT_EQ(One<int32_t>(state_.masked, 0), 0);
  EXPECT_EQ(One<int32_t>(state_.masked, 1), 1);
  EXPECT_EQ(One<int32_t>(state_.masked, 2), 0);
  EXPECT_EQ(OfSlot<uint32_t>(state_.mask, 1), std::vector<uint32_t>{0x81});
  slots_.Open({.slot = SlotId{1}, .params = Request({.prompt = Ids({0})})});
  EXPECT_EQ(One<int32_t>(state_.masked, 1), 0);
}

}  // namespace
}  // namespace fathom
