// Requests through a StepRunner: their prompts, then decodes whose drafts a test sets by hand.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "engine/step_runner.h"
#include "model/model.h"
#include "tensor/device.h"

namespace fathom {

inline constexpr int32_t kTestRequests = 3, kTestPagesEach = 2, kTestDrafts = 3;
inline constexpr int64_t kTestTokens = 256;  // of a step: enough for all prompts

inline ModelOptions TestModelOptions(int64_t max_drafts) {
  return {.max_tokens = kTestTokens,
          .max_rows = kTestRequests,
          .max_drafts = max_drafts,
          .max_logit_vectors = kTestRequests * (1 + kTestDrafts),
          .max_model_len = kTestPagesEach * kPageTokens};
}

// The first step: each request's whole prompt, and the pages that it will ever need.
inline StepPlan PromptsPlan() {
  Rng rng(11);
  StepPlan plan;
  for (int32_t r = 0; r < kTestRequests; ++r) {
    RequestParams params{.prompt = {}, .max_tokens = 60};
    for (int32_t i = 0; i < 40 + 10 * r; ++i) {
      params.prompt.push_back(TokenId{static_cast<int32_t>(rng.Below(4000))});
    }
    params.sampling = {.temperature = r == 0 ? 0.0f : 1.0f,
                       .presence_penalty = 0.5f,
                       .repetition_penalty = 1.3f,
                       .seed = static_cast<uint64_t>(r)};
    const auto prompt = static_cast<int32_t>(params.prompt.size());
    StepRow row{.slot = SlotId{r}, .begin = 0, .tokens = params.prompt, .samples = true};
    for (int32_t i = 0; i < kTestPagesEach; ++i) {
      row.new_pages.push_back(PageId{r * kTestPagesEach + i});
    }
    plan.openings.push_back({.slot = SlotId{r},
                             .params = std::make_shared<const RequestParams>(std::move(params)),
                             .final_length = prompt + 60});
    plan.rows.push_back(std::move(row));
  }
  Widen(plan.shape, plan, /*logprobs=*/false);
  return plan;
}

// A decode of each request, with room for so many drafts.
inline StepPlan DecodesPlan(uint64_t step, const std::vector<int32_t>& drafts) {
  StepPlan plan{.step = step};
  for (int32_t r = 0; r < kTestRequests; ++r) {
    plan.rows.push_back(
        {.slot = SlotId{r}, .drafts = drafts[static_cast<size_t>(r)], .samples = true});
  }
  Widen(plan.shape, plan, /*logprobs=*/false);
  return plan;
}

// A token that was drawn, with the bits that it was drawn from.
struct DecodedToken {
  TokenId id{};
  std::vector<std::byte> hidden, logits;

  friend bool operator==(const DecodedToken&, const DecodedToken&) = default;
};

class TestDecodes {
 public:
  using Tokens = std::vector<std::vector<DecodedToken>>;  // of each request

  TestDecodes(const Ops& ops, Device& device, int64_t max_drafts)
      : device_(device),
        model_(Model::Load(Checkpoint::Open("models/tiny-r1").value(), ops, device,
                           TestModelOptions(max_drafts), nullptr)
                   .value()),
        runner_(*model_, device,
                {.num_pages = kTestRequests * kTestPagesEach, .slots = kTestRequests}) {
    runner_.Begin(PromptsPlan());
    const StepPlan plan = PromptsPlan();
    const StagedStep& step = runner_.Stage(plan);
    runner_.SampleAndCommit(step, runner_.Forward(step));
  }

  // What the next step draws, behind these drafts of each request, whether they stand or not. The
  // step is recorded or replayed if it is `padded`.
  Tokens Step(const std::vector<std::vector<TokenId>>& drafts, const BatchCapacity& padded = {}) {
    std::vector<int32_t> capacities, index;
    for (size_t r = 0; r < drafts.size(); ++r) {
      SetDrafts(static_cast<int32_t>(r), drafts[r]);
      capacities.push_back(static_cast<int32_t>(drafts[r].size()));
      for (size_t i = 0; i <= drafts[r].size(); ++i) {
        index.push_back(static_cast<int32_t>(index.size()));
      }
    }
    const StepPlan plan = DecodesPlan(++steps_, capacities);
    runner_.Begin(plan);
    const StagedStep& step = runner_.Stage(plan, padded);
    const auto enqueue = [&] {
      hidden_[padded.tokens] = runner_.Forward(step);
      runner_.SampleAndCommit(step, hidden_[padded.tokens]);
    };
    if (padded.tokens == 0) {
      enqueue();
    } else {
      device_.RecordOrReplay(static_cast<uint64_t>(padded.rows << 32 | padded.tokens), enqueue);
    }
    Sampler::Drawn drawn;
    runner_.DownloadDrawn(plan, step, drawn);
    const TensorView hidden = hidden_[padded.tokens];
    const auto vectors = static_cast<int64_t>(index.size());
    const auto states = Read(hidden.Slice(0, 0, vectors), vectors);
    const auto logits = Read(runner_.Logits(hidden, index), vectors);
    stood_ = drawn.count;
    Tokens tokens(drafts.size());
    for (size_t r = 0, at = 0; r < drafts.size(); ++r) {
      for (int32_t i = 0; i <= capacities[r]; ++i, ++at) {
        tokens[r].push_back({drawn.token(at).value(), states[at], logits[at]});
      }
    }
    return tokens;
  }

  // Of the last step's requests: how many tokens stand.
  const std::vector<int32_t>& stood() const { return stood_; }

  // As many tokens of each request, one by one.
  Tokens OneByOne(int count) {
    Tokens tokens(kTestRequests);
    for (int i = 0; i < count; ++i) {
      Tokens step = Step(std::vector<std::vector<TokenId>>(kTestRequests));
      for (size_t r = 0; r < step.size(); ++r) tokens[r].push_back(std::move(step[r][0]));
    }
    return tokens;
  }

 private:
  void SetDrafts(int32_t slot, const std::vector<TokenId>& drafts) {
    const auto count = static_cast<int32_t>(drafts.size());
    const SlotState& slots = runner_.slots();
    device_.Upload(slots.num_drafts.Slice(0, slot, slot + 1), std::as_bytes(std::span(&count, 1)));
    if (drafts.empty()) return;
    device_.Upload(slots.drafts.At(slot).Slice(0, 0, count), std::as_bytes(std::span(drafts)));
  }
  // The bytes of each of `parts` equal parts.
  std::vector<std::vector<std::byte>> Read(const TensorView& from, int64_t parts) {
    std::vector<std::byte> bytes(static_cast<size_t>(from.elements()) * ByteSize(from.dtype()));
    device_.Download(bytes, from);
    device_.WaitFor(device_.Mark());
    std::vector<std::vector<std::byte>> of_parts;
    const auto size = static_cast<std::ptrdiff_t>(bytes.size()) / parts;
    for (auto at = bytes.begin(); at != bytes.end(); at += size)
      of_parts.emplace_back(at, at + size);
    return of_parts;
  }

  Device& device_;
  std::unique_ptr<Model> model_;
  StepRunner runner_;
  std::map<int64_t, TensorView> hidden_;  // of steps padded to so many tokens
  std::vector<int32_t> stood_;
  uint64_t steps_ = 0;
};

// So many tokens of each request come in as many steps of WithDrafts() as there are numbers of
// drafts.
inline constexpr int kTestCycleTokens = (1 + kTestDrafts) * (2 + kTestDrafts) / 2;

// The same tokens in rows of 1 to 1 + kTestDrafts, whose drafts stand. `padded`: as for Step().
// REQUIRES: whole cycles.
inline TestDecodes::Tokens WithDrafts(TestDecodes& decodes, const TestDecodes::Tokens& one_by_one,
                                      const BatchCapacity& padded = {}) {
  TestDecodes::Tokens tokens(one_by_one.size());
  for (size_t step = 0; tokens[0].size() < one_by_one[0].size(); ++step) {
    std::vector<std::vector<TokenId>> drafts(one_by_one.size());
    for (size_t r = 0; r < drafts.size(); ++r) {
      for (size_t i = 0; i < (step + r) % (1 + kTestDrafts); ++i) {
        drafts[r].push_back(one_by_one[r].at(tokens[r].size() + i).id);
      }
    }
    TestDecodes::Tokens next = decodes.Step(drafts, padded);
    for (size_t r = 0; r < next.size(); ++r) {
      CHECK(decodes.stood()[r] == static_cast<int32_t>(next[r].size()), "a true draft fell");
      for (DecodedToken& token : next[r]) tokens[r].push_back(std::move(token));
    }
  }
  return tokens;
}

}  // namespace fathom
