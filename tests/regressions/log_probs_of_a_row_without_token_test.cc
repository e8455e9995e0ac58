// A row whose logits hold NaN has no token: -1. On CPUs log_probs took that for a bug and ended the
// process, if that request or another one of its step wanted log-probabilities.
#include <gtest/gtest.h>

#include <string>

#include "sound_and_broken.h"

namespace fathom {
namespace {

struct Case {
  const char* name;
  WantedLogprobs wanted;
};

class LogProbsOfARowWithoutToken : public testing::TestWithParam<Case> {};

TEST_P(LogProbsOfARowWithoutToken, EndsItsRequestAndNoOther) {
  const SoundAndBroken ended = RunSoundAndBroken(/*max_tokens=*/1, GetParam().wanted);
  EXPECT_EQ(ended.broken.error.code(), StatusCode::kInternal);
  const RequestOutput& sound = ended.sound;
  ASSERT_TRUE(sound.error.ok()) << sound.error.message();
  ASSERT_EQ(sound.tokens.size(), 1u);
  if (GetParam().wanted.of_sound < 0) return;
  ASSERT_TRUE(sound.tokens[0].logprobs);
  EXPECT_LE(sound.tokens[0].logprobs->logprob, 0);
  EXPECT_EQ(sound.tokens[0].logprobs->top.at(0).first, sound.tokens[0].id);  // greedy
}

INSTANTIATE_TEST_SUITE_P(All, LogProbsOfARowWithoutToken,
                         testing::Values(Case{"Own", {.of_broken = 0}},
                                         Case{"Company", {.of_sound = 1}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fathom
