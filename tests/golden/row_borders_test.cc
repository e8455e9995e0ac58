// A prompt's tokens have the same bits wherever in their chunk a row begins or ends, as long as
// they take the form of their chunk: what a prefix hit and a resumed request rest on. Generated
// tokens have the bits of their decode in rows of any length.
#include <gtest/gtest.h>

#include <cstring>

#include "base/under_sanitizer.h"
#include "engine/step_runner.h"
#include "golden/run_requests.h"
#include "scheduler/one_request.h"

namespace fathom {
namespace {

constexpr int32_t kTokens = 600, kPages = (kTokens + kPageTokens - 1) / kPageTokens;

// One request through a model, in the rows that a test asks for.
class Rows {
 public:
  explicit Rows(const Setting& setting) : device_(2) {
    auto checkpoint = Checkpoint::Open("models/tiny-r1");
    CHECK(checkpoint.ok(), "{}", checkpoint.status().message());
    auto model = Model::Load(*checkpoint, *setting.ops, device_,
                             {.max_tokens = kTokens,
                              .max_rows = 1,
                              .max_logit_vectors = 1,
                              .max_model_len = kTokens,
                              .kv_cache = setting.kv_cache},
                             nullptr);
    CHECK(model.ok(), "{}", model.status().message());
    model_ = *std::move(model);
    runner_ = std::make_unique<StepRunner>(*model_, device_,
                                           StepRunnerCapacity{.num_pages = kPages, .slots = 1});
    Rng rng(3);
    for (int64_t i = 0; i < kTokens; ++i) {
      tokens_.push_back(TokenId{static_cast<int32_t>(rng.Below(4000))});
    }
  }

  // Final hidden states of tokens [0, ends.back()), in rows of one form that end at `ends`.
  std::vector<std::byte> Run(AttentionForm form, const std::vector<int32_t>& ends) {
    OneRequest request(std::make_shared<const RequestParams>(), kPages);
    std::vector<std::byte> states;
    int32_t begin = 0;
    for (const int32_t end : ends) {
      const StepPlan plan = request.Next(
          form,
          std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      runner_->Begin(plan);
      const StagedStep& step = runner_->Stage(plan);
      const TensorView hidden = runner_->Forward(step);
      runner_->SampleAndCommit(step, hidden);
      const auto* data = static_cast<const std::byte*>(hidden.data());
      states.insert(states.end(), data,
                    data + static_cast<size_t>(hidden.elements()) * ByteSize(hidden.dtype()));
      begin = end;
    }
    return states;
  }

 private:
  CpuDevice device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<StepRunner> runner_;
  std::vector<TokenId> tokens_;
};

std::vector<int32_t> EveryToken(int32_t end) {
  std::vector<int32_t> ends;
  for (int32_t at = 1; at <= end; ++at) ends.push_back(at);
  return ends;
}

TEST(RowBorders, ChangeNoBit) {
  for (const Setting& setting : FewerUnderSanitizer(Tables())) {
    Rows rows(setting);
    const std::vector<std::vector<int32_t>> borders = {
        {1, 600}, {63, 64, 65, 600}, {128, 384, 600}, {255, 257, 511, 513, 600}, {599, 600}};
    for (const AttentionForm form : {AttentionForm::kAbsorbed, AttentionForm::kExpanded}) {
      const std::vector<std::byte> whole = rows.Run(form, {600});
      for (const auto& ends : borders) {
        EXPECT_TRUE(rows.Run(form, ends) == whole)
            << setting.ops->name << ", rows of one form that end at "
            << testing::PrintToString(ends);
      }
    }
    // Decodes, which are always absorbed.
    const int32_t decodes = kUnderSanitizer ? 20 : 150;
    EXPECT_TRUE(rows.Run(AttentionForm::kAbsorbed, EveryToken(decodes)) ==
                rows.Run(AttentionForm::kAbsorbed, {decodes}))
        << setting.ops->name;
    // The canary: the other form has other bits.
    EXPECT_FALSE(rows.Run(AttentionForm::kAbsorbed, {600}) ==
                 rows.Run(AttentionForm::kExpanded, {600}));
  }
}

}  // namespace
}  // namespace fathom
