// Requests with grammars, through an engine with a model.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/token_mask.h"
#include "checkpoint/checkpoint.h"
#include "cpu/cpu_device.h"
#include "engine/engine.h"
#include "engine/grammar_guide.h"
#include "engine/model_executor.h"
#include "grammar/grammar_pace.h"
#include "grammar/grammar_steps.h"
#include "model/model.h"

namespace fathom {
namespace {

constexpr TokenId kEnd{0};
constexpr int32_t kWords = 5;  // of an answer; its word i is one of two tokens, which no other is

TokenId Word(int32_t i, int32_t which) {
  return TokenId{300 + 2 * i + which};
}

enum class Fault { kNone, kNoStart, kNoMask, kDeadEnd, kForbids, kSlow };

class WordsState final : public GrammarState {
 public:
  explicit WordsState(Fault fault) : fault_(fault) {}
  Result<bool> Accept(TokenId token) override {
    if (fault_ == Fault::kForbids && at_ == 2) return false;
    if (fault_ == Fault::kSlow && at_ == 1) {
      steps_to_look -= 1'000'000'000;
      TRY(PaceLimit::Check());
    }
    if (at_ == kWords) return terminated_ = token == kEnd;
    if (token != Word(at_, 0) && token != Word(at_, 1)) return false;
    return ++at_, true;
  }
  Status FillMask(std::span<uint32_t> words) override {
    if (fault_ == Fault::kNoMask && at_ == 2) return Internal("no mask");
    if (fault_ == Fault::kDeadEnd && at_ == 2) return NotFound("none");
    std::fill(words.begin(), words.end(), 0);
    const auto allow = [&](TokenId id) { words[Raw(id) / 32] |= 1U << (Raw(id) % 32); };
    if (at_ == kWords) return allow(kEnd), Status();
    allow(Word(at_, 0)), allow(Word(at_, 1));
    return {};
  }
  bool terminated() const override { return terminated_; }
  Status Rollback(int32_t tokens) override {
    at_ -= tokens - std::exchange(terminated_, false);
    return {};
  }

 private:
  const Fault fault_;
  int32_t at_ = 0;
  bool terminated_ = false;
};

class Words final : public Grammar {
 public:
  explicit Words(Fault fault = Fault::kNone) : fault_(fault) {}
  Result<std::unique_ptr<GrammarState>> Start() const override {
    if (fault_ == Fault::kNoStart) return Internal("no start");
    return std::unique_ptr<GrammarState>(std::make_unique<WordsState>(fault_));
  }
  size_t bytes() const override { return 1; }

 private:
  const Fault fault_;
};

// An engine with tiny-r1, of which requests are asked together.
class GrammarRequests : public testing::Test {
 protected:
  void SetUp() override {
    auto checkpoint = Checkpoint::Open("models/tiny-r1");
    ASSERT_TRUE(checkpoint.ok());
    vocab_ = static_cast<int32_t>(checkpoint->config().vocab_size);
    auto model = Model::Load(
        *checkpoint, CpuOps(Fp8Activations::kExact), device_,
        {.max_tokens = 64, .max_rows = 8, .max_logit_vectors = 8, .max_model_len = 128}, nullptr);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(*model);
  }

  std::vector<RequestOutput> Ask(std::vector<GenerateRequest> requests, int32_t pages = 16) {
    const EngineOptions options{.scheduler = {.max_num_seqs = 8,
                                              .max_num_batched_tokens = 64,
                                              .prefill_chunk = 64,
                                              .num_pages = pages,
                                              .max_model_len = 128,
                                              .absorbed_limit = 128},
                                .vocab_size = vocab_};
    std::vector<RequestOutput> all(requests.size());
    std::mutex mutex;
    std::condition_variable changed;
    size_t ended = 0;
    const SteadyClock clock;
    Engine engine(options,
                  std::make_unique<ModelExecutor>(
                      *model_, device_, ModelExecutorOptions{.num_pages = pages, .slots = 8}),
                  &clock, [&](std::vector<RequestOutput> outputs) {
                    std::lock_guard lock(mutex);
                    for (RequestOutput& output : outputs) {
                      RequestOutput& one = all[Raw(output.id)];
                      for (GeneratedToken& token : output.tokens) one.tokens.push_back(token);
                      one.finish = output.finish;
                      one.error = output.error;
                      ended += output.finish.has_value();
                    }
                    preemptions_ = engine_->Stats().preemptions;
                    changed.notify_all();
                  });
    engine_ = &engine;
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].id = RequestId{i};
      const Status status = engine.Submit(requests[i]);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    engine.Start();
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended == all.size(); });
    return all;
  }

  CpuDevice device_{1};
  std::unique_ptr<Model> model_;
  Engine* engine_ = nullptr;
  int64_t preemptions_ = 0;
  int32_t vocab_ = 0;
};

GenerateRequest Request(uint64_t seed, int32_t prompt_tokens, bool guided) {
  GenerateRequest request;
  for (int32_t i = 0; i < prompt_tokens; ++i) request.prompt.push_back(TokenId{5 + i});
  request.sampling.seed = seed;
  request.stop_tokens = {kEnd};
  request.max_tokens = 20;
  if (guided) request.grammar = std::make_shared<Words>();
  return request;
}

std::vector<TokenId> TokensOf(const RequestOutput& output) {
  std::vector<TokenId> tokens;
  for (const GeneratedToken& token : output.tokens) tokens.push_back(token.id);
  return tokens;
}

// Whether it is a whole answer, from `begin` on.
void ExpectWords(const RequestOutput& output, size_t begin = 0) {
  EXPECT_EQ(output.finish, FinishReason::kStop) << output.error.message();
  const std::vector<TokenId> tokens = TokensOf(output);
  ASSERT_EQ(tokens.size(), begin + kWords + 1);
  for (int32_t i = 0; i < kWords; ++i) {
    EXPECT_TRUE(tokens[begin + i] == Word(i, 0) || tokens[begin + i] == Word(i, 1)) << i;
  }
  EXPECT_EQ(tokens.back(), kEnd);
}

TEST_F(GrammarRequests, AnswersFollowThemAndNeighboursDoNotNotice) {
  std::vector<GenerateRequest> mixed, plain;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    mixed.push_back(Request(seed, 3 + static_cast<int32_t>(seed), seed % 2 == 0));
    plain.push_back(Request(seed, 3 + static_cast<int32_t>(seed), false));
  }
  const auto together = Ask(mixed), without = Ask(plain);
  std::set<TokenId> first;
  for (size_t i = 0; i < 8; ++i) {
    if (mixed[i].grammar) {
      ExpectWords(together[i]);
      EXPECT_EQ(TokensOf(together[i]), TokensOf(Ask({mixed[i]})[0]));
      first.insert(together[i].tokens[0].id);
    } else {
      EXPECT_EQ(TokensOf(together[i]), TokensOf(without[i])) << i;
    }
  }
  EXPECT_GT(first.size(), 1u) << "nothing is left to the model";
}

// The slot that one with a grammar has left has no mask for who comes next.
TEST_F(GrammarRequests, ASlotsNextRequestIsFree) {
  std::vector<GenerateRequest> requests;
  for (uint64_t seed = 0; seed < 16; ++seed) requests.push_back(Request(seed, 4, seed < 8));
  const auto outputs = Ask(requests);
  for (size_t i = 0; i < 16; ++i) {
    if (i < 8) {
      ExpectWords(outputs[i]);
    } else {
      EXPECT_EQ(TokensOf(outputs[i]), TokensOf(Ask({requests[i]})[0])) << i;
    }
  }
}

// Prompts and answers need more pages than there are, so that some are computed again.
TEST_F(GrammarRequests, APreemptionKeepsTheGrammar) {
  std::vector<GenerateRequest> requests;
  for (uint64_t seed = 0; seed < 6; ++seed) requests.push_back(Request(seed, 62, true));
  const auto outputs = Ask(requests, 5);
  EXPECT_GT(preemptions_, 0);
  for (size_t i = 0; i < 6; ++i) {
    ExpectWords(outputs[i]);
    EXPECT_EQ(TokensOf(outputs[i]), TokensOf(Ask({requests[i]})[0])) << i;
  }
}

// Before the token that begins it anything may come, but the answer's end.
TEST_F(GrammarRequests, BeginsBehindAToken) {
  GenerateRequest request = Request(3, 5, true);
  GenerateRequest free = request;
  free.grammar = nullptr;
  free.stop_tokens.clear();
  free.max_tokens = 4;
  const std::vector<TokenId> thought = TokensOf(Ask({free})[0]);
  request.grammar_after = thought[1];
  const size_t begin = thought[0] == thought[1] ? 1 : 2;
  ExpectWords(Ask({request})[0], begin);

  request.stop_tokens.push_back(thought[0]);  // what would end it there cannot come
  request.grammar_after = TokenId{vocab_ - 1};
  const RequestOutput output = Ask({request})[0];
  EXPECT_EQ(output.finish, FinishReason::kLength);
  EXPECT_NE(output.tokens[0].id, thought[0]);
}

TEST_F(GrammarRequests, AFaultEndsItsRequestAlone) {
  for (const Fault fault :
       {Fault::kNoStart, Fault::kNoMask, Fault::kDeadEnd, Fault::kForbids, Fault::kSlow}) {
    std::vector<GenerateRequest> requests = {Request(1, 4, true), Request(2, 5, false),
                                             Request(3, 6, true)};
    requests[0].grammar = std::make_shared<Words>(fault);
    const auto outputs = Ask(requests);
    EXPECT_EQ(outputs[0].finish, FinishReason::kError);
    EXPECT_EQ(outputs[0].error.code(), fault == Fault::kSlow || fault == Fault::kDeadEnd
                                           ? StatusCode::kInvalidArgument
                                           : StatusCode::kInternal);
    EXPECT_LE(outputs[0].tokens.size(), 2u);
    EXPECT_EQ(TokensOf(outputs[1]), TokensOf(Ask({requests[1]})[0]));
    ExpectWords(outputs[2]);
  }
}

// Of a guide's masks, which tokens each allows.
std::vector<std::set<int32_t>> AllowedBy(const GrammarGuide& guide, int32_t vocab) {
  std::vector<std::set<int32_t>> allowed;
  const auto words = static_cast<size_t>(MaskWords(vocab));
  for (size_t i = 0; i < guide.masks().size(); ++i) {
    if (i % words == 0) allowed.emplace_back();
    for (uint32_t bit = 0; bit < 32; ++bit) {
      if ((guide.masks()[i] >> bit & 1) != 0) {
        allowed.back().insert(static_cast<int32_t>(i % words * 32 + bit));
      }
    }
  }
  return allowed;
}

TEST(GrammarGuideTest, ForeseesWhatMayFollowEachDraftUpToTheFirstForbiddenOne) {
  constexpr int32_t kVocab = 400;
  const auto words = [](std::initializer_list<int32_t> at) {
    std::vector<std::set<int32_t>> allowed;
    for (const int32_t i : at) allowed.push_back({Raw(Word(i, 0)), Raw(Word(i, 1))});
    return allowed;
  };
  GrammarGuide guide = GrammarGuide::Start(Request(1, 4, true), kVocab).value();
  EXPECT_EQ(AllowedBy(guide, kVocab), words({0}));
  const std::vector<TokenId> right = {Word(0, 1), Word(1, 0), Word(2, 1)};
  ASSERT_TRUE(guide.Foresee(right).ok());
  EXPECT_EQ(AllowedBy(guide, kVocab), words({0, 1, 2, 3}));
  ASSERT_TRUE(guide.Take(Word(0, 0)).ok()) << "it is where it was";
  EXPECT_EQ(AllowedBy(guide, kVocab), words({1}));
  ASSERT_TRUE(guide.Foresee(std::vector<TokenId>{Word(1, 0), Word(1, 0), Word(3, 0)}).ok());
  EXPECT_EQ(AllowedBy(guide, kVocab), words({1, 2})) << "the second is forbidden";
  for (int32_t at = 1; at < kWords; ++at) ASSERT_TRUE(guide.Take(Word(at, 1)).ok());
  ASSERT_TRUE(guide.Foresee(std::vector<TokenId>{kEnd, kEnd}).ok());
  EXPECT_EQ(AllowedBy(guide, kVocab), std::vector<std::set<int32_t>>{{Raw(kEnd)}});
  ASSERT_TRUE(guide.Take(kEnd).ok());

  // One that nothing can follow. It may be a wrong guess, and fails once it is the answer's.
  GenerateRequest ending = Request(1, 4, true);
  ending.grammar = std::make_shared<Words>(Fault::kDeadEnd);
  GrammarGuide end = GrammarGuide::Start(ending, kVocab).value();
  ASSERT_TRUE(end.Foresee(right).ok());
  EXPECT_EQ(AllowedBy(end, kVocab), words({0, 1}));
  ASSERT_TRUE(end.Take(Word(0, 0)).ok());
  EXPECT_EQ(end.Take(Word(1, 0)).code(), StatusCode::kInvalidArgument);

  // A draft that begins the grammar.
  GenerateRequest thinking = Request(1, 4, true);
  thinking.grammar_after = TokenId{7};
  GrammarGuide later = GrammarGuide::Start(thinking, kVocab).value();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(later.Foresee(std::vector<TokenId>{TokenId{9}, TokenId{7}, Word(0, 1)}).ok());
    const auto allowed = AllowedBy(later, kVocab);
    ASSERT_EQ(allowed.size(), 4u);
    EXPECT_EQ(allowed[0], allowed[1]);
    EXPECT_TRUE(allowed[1].contains(7) && !allowed[1].contains(Raw(kEnd)));
    EXPECT_EQ(allowed[2], words({0})[0]);
    EXPECT_EQ(allowed[3], words({1})[0]);
    ASSERT_TRUE(later.Take(TokenId{9}).ok()) << "it has not begun";
  }
}

TEST_F(GrammarRequests, WhatContradictsOneIsRefused) {
  const SteadyClock clock;
  EngineOptions options{.scheduler = {.num_pages = 4, .max_model_len = 128, .absorbed_limit = 128}};
  const auto submit = [&](const GenerateRequest& request, int32_t vocab) {
    options.vocab_size = vocab;
    Engine engine(options,
                  std::make_unique<ModelExecutor>(*model_, device_,
                                                  ModelExecutorOptions{.num_pages = 4, .slots = 8}),
                  &clock, [](const std::vector<RequestOutput>&) {});
    return engine.Submit(request).code();
  };
  GenerateRequest request = Request(1, 4, true);
  EXPECT_EQ(submit(request, vocab_), StatusCode::kOk);
  EXPECT_EQ(submit(request, 0), StatusCode::kUnimplemented);
  request.min_tokens = 1;
  EXPECT_EQ(submit(request, vocab_), StatusCode::kInvalidArgument);
  request.min_tokens = 0;
  request.stop_tokens.clear();
  EXPECT_EQ(submit(request, vocab_), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
