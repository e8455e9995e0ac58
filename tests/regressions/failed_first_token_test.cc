// A request whose first token cannot be sampled (NaN logits) has a decode in flight by then, which
// embedded the token that the slot was opened with: -1, and the process ended.
#include <gtest/gtest.h>

#include "sound_and_broken.h"

namespace fathom {
namespace {

TEST(FailedFirstToken, EndsItsRequestAndNoOther) {
  const SoundAndBroken ended = RunSoundAndBroken(/*max_tokens=*/4, {});
  EXPECT_TRUE(ended.sound.error.ok()) << ended.sound.error.message();
  EXPECT_EQ(ended.broken.error.code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace fathom
