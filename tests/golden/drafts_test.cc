// More drafts change no bit: whatever a proposer guesses, a verifier that lets a draft stand if it
// is the token that was drawn gives the tokens and log-probabilities of decodes one by one.
#include <utility>

#include "engine/test_recording_cpu.h"
#include "golden/real_drafts.h"

namespace fathom {
namespace {

constexpr int32_t kDrafts = 3;

// A proposer for tests: what followed a token elsewhere, and at times something else. Each has one
// run at a time, on the executor's thread.
struct Proposer {
  std::map<int32_t, int32_t> successors;
  int64_t accepted = 0, rejected = 0;

  int32_t After(int32_t token, int32_t position) const {
    const auto at = successors.find(token);
    return at == successors.end() || position % 7 == 0 ? (token + 1) % 4000 : at->second;
  }
};
Proposer* proposer = nullptr;
const Ops* right = nullptr;

// Sets the drafts of every slot that a step had a row of; how many, depends on where it stands.
void Propose(const CommitArgs& a) {
  for (int32_t r = 0; r < *a.live_rows.As<int32_t>(); ++r) {
    const int32_t slot = a.row_slot.As<int32_t>()[r];
    const int32_t position = a.slots.length.As<int32_t>()[slot];
    int32_t token = a.slots.last_token.As<int32_t>()[slot];
    for (int32_t i = 0; i < kDrafts; ++i) {
      token = proposer->After(token, position + i);
      a.slots.drafts.As<int32_t>(slot)[i] = token;
    }
    a.slots.num_drafts.As<int32_t>()[slot] = position % 5 == 0 ? position % 3 : kDrafts;
  }
}

void CommitPropose(OpContext& context, const CommitArgs& a) {
  const int32_t *logits = a.logit_begin.As<int32_t>(), *begin = a.row_begin.As<int32_t>();
  for (int32_t r = 0; r < *a.live_rows.As<int32_t>(); ++r) {
    const int32_t vectors = logits[r + 1] - logits[r],
                  dropped = begin[r + 1] - begin[r] - a.row_count.As<int32_t>()[r];
    proposer->accepted += std::max(vectors - 1 - dropped, 0);
    proposer->rejected += dropped;
  }
  right->commit.run(context, a);
  Propose(a);
}

// Every logit vector as if it were its row's first.
void AdjustAsTheFirst(OpContext& context, const AdjustLogitsArgs& a) {
  std::vector<int32_t> zeros(static_cast<size_t>(a.ordinal.dim(0)), 0);
  AdjustLogitsArgs wrong = a;
  wrong.ordinal = TensorView(zeros.data(), DType::kI32, {a.ordinal.dim(0)});
  right->adjust_logits.run(context, wrong);
}

class Drafts : public testing::Test {
 protected:
  // Of the requests with drafts, by the setting's table with the test's proposer behind commit.
  Results RunWithDrafts(
      Setting setting, const std::function<void(Ops&)>& change = [](Ops&) {}) {
    right = setting.ops;
    Ops ops = *right;
    ops.commit.run = CommitPropose;
    change(ops);
    setting.ops = &ops;
    setting.drafts = kDrafts;
    proposer = &proposer_;
    return RunAll(setting, requests_, &preemptions_);
  }
  // What followed a token in these answers.
  void Learn(const Results& results) {
    proposer_ = {};
    for (const auto& [id, tokens] : results) {
      for (size_t i = 1; i < tokens.size(); ++i) {
        proposer_.successors[Raw(tokens[i - 1].id)] = Raw(tokens[i].id);
      }
    }
  }

  std::vector<GenerateRequest> requests_ = RequestsWithEveryParameter();
  Proposer proposer_;
  int64_t preemptions_ = 0, cached_ = 0;  // of the last run
};

TEST_F(Drafts, ChangeNoBit) {
  for (const Setting& setting : FewerUnderSanitizer(Tables())) {
    const Results base = RunAll(setting, requests_);
    size_t lengths = 0, stopped = 0;
    for (const auto& [id, tokens] : base) {
      lengths += tokens.size();
      stopped += tokens.size() < 40;
    }
    EXPECT_GT(stopped, 0u);
    Learn(base);
    ExpectSameBits(base, RunWithDrafts(setting));
    EXPECT_GT(proposer_.accepted, static_cast<int64_t>(lengths / 8));
    EXPECT_GT(proposer_.rejected, static_cast<int64_t>(lengths / 8));
  }
}

TEST_F(Drafts, OfTheModelOrOfNgramsChangeNoBit) {
  const std::vector<GenerateRequest> requests = RequestsForRealDrafts();
  for (const Setting& setting : FewerUnderSanitizer(Tables())) {
    const Results base = RunAll(setting, requests);
    const bool all_depths = setting.ops == Setting().ops;
    ExpectRealDraftsChangeNoBit(setting, requests, base,
                                all_depths ? std::vector{1, 2, 3, 4, 5, 6, 7} : std::vector{3});
    if (!all_depths) continue;
    // In steps that are padded as where they are recorded; on a GPU: tests/gpu/real_drafts_test.cc.
    Setting padded = setting;
    padded.pass_vectors = padded.slots * (1 + kDrafts);
    padded.open = [] { return std::make_unique<RecordingCpu>(2); };
    ExpectRealDraftsChangeNoBit(padded, requests, base, {kDrafts});
  }
}

TEST_F(Drafts, CanaryRealDraftsThatAreNotVerifiedAreNoticed) {
  const std::vector<GenerateRequest> requests = RequestsForRealDrafts();
  ExpectUnverifiedDraftsAreNoticed({}, requests, RunAll({}, requests));
}

TEST_F(Drafts, OfTheModelOrOfNgramsChangeNoBitHoweverStepsAreCut) {
  std::erase_if(requests_, [](const auto& r) { return Raw(r.id) % 4 != 1; });
  for (GenerateRequest& request : requests_) {
    request.max_tokens = 150;
    request.min_tokens = 140;
  }
  const Results base = RunAll({}, requests_);
  const Setting cut = {.budget = 300, .slots = 5, .pass_vectors = 1};
  const Setting preempted = {.budget = 256, .slots = 32, .pages = 9};
  for (Setting setting : {WithNgrams(cut, 5), WithMtp(cut, 5), WithMtp({}, 3)}) {
    ExpectSameBits(base, RunAll(setting, requests_));
    setting.adapts = true;
    ExpectSameBits(base, RunAll(setting, requests_));
    // Steps are timed at start-up in the slots and pages that requests then have.
    setting.open = [] { return std::make_unique<RecordingCpu>(2); };
    ExpectSameBits(base, RunAll(setting, requests_));
  }
  for (const Setting& setting : {WithNgrams(preempted, 3), WithMtp(preempted, 3)}) {
    ExpectSameBits(base, RunAll(setting, requests_, &preemptions_));
    EXPECT_GE(preemptions_, 1);
  }
}

// Whoever is left gets what was due, and who goes got the beginning of it.
TEST_F(Drafts, CancelsWithDraftsInFlightChangeNoBit) {
  for (GenerateRequest& request : requests_) {
    request.max_tokens = request.min_tokens = 90;
    if (Raw(request.id) % 2 == 0) request.sampling = {.temperature = 0, .logprobs = 3};
  }
  const Results base = RunAll({}, requests_);
  for (Setting setting : {WithNgrams({.slots = 8}, 3), WithMtp({.slots = 8}, 3)}) {
    setting.cancels = true;
    size_t cut_short = 0;
    for (const auto& [id, tokens] : RunAll(setting, requests_)) {
      const auto& all = base.at(id);
      cut_short += tokens.size() < all.size();
      if (Raw(id) % 3 != 0) EXPECT_EQ(tokens.size(), all.size());
      EXPECT_TRUE(std::ranges::mismatch(tokens, all, SameBits).in1 == tokens.end()) << Raw(id);
    }
    EXPECT_GT(cut_short, 3u);
  }
}

// What the draft layer guesses is a function of the request too: its latents are those of a request
// that runs alone, that is preempted, or that finds its prompt's pages.
TEST_F(Drafts, OfTheModelAreTheSameInAnyCompany) {
  const auto is_short = [](const auto& r) { return r.prompt.size() < 60; };
  std::erase_if(requests_, is_short);
  for (GenerateRequest& request : requests_) request.max_tokens = 120;
  const auto accepted = [&](Setting setting, const std::vector<std::vector<GenerateRequest>>& all) {
    EngineStats stats;
    RunBatches(WithMtp(setting, 2), all, &stats);
    preemptions_ = stats.preemptions;
    cached_ = stats.prefix_hits;
    return stats.drafts.accepted;
  };
  std::vector<std::vector<GenerateRequest>> alone;
  for (const GenerateRequest& request : requests_) alone.push_back({request});
  const int64_t expected = accepted({}, {requests_});
  EXPECT_GT(expected, 0);
  EXPECT_EQ(accepted({}, alone), expected);
  EXPECT_EQ(accepted({.budget = 256, .slots = 32, .pages = 9}, {requests_}), expected);
  EXPECT_GE(preemptions_, 1);
  std::vector<GenerateRequest> again = requests_;
  for (GenerateRequest& request : again) request.id = RequestId{Raw(request.id) + 1000};
  EXPECT_EQ(accepted({.prefix_caching = true}, {requests_, again}), 2 * expected);
  EXPECT_GT(cached_, 0);
}

// Vectors of a row in passes of their own, few slots, a small budget, and preemptions.
TEST_F(Drafts, ChangeNoBitHoweverStepsAreCut) {
  std::erase_if(requests_, [](const auto& r) { return Raw(r.id) % 4 != 1; });
  for (GenerateRequest& request : requests_) {
    request.max_tokens = 150;
    request.min_tokens = 140;
  }
  const Results base = RunAll({}, requests_);
  Learn(base);
  for (const Setting& setting : {Setting{.budget = 300, .slots = 5, .pass_vectors = 1},
                                 Setting{.budget = 256, .slots = 32, .pages = 9}}) {
    ExpectSameBits(base, RunWithDrafts(setting));
  }
  EXPECT_GE(preemptions_, 1);
}

TEST_F(Drafts, CanaryWhatIsNotVerifiedOrAdjustedIsNoticed) {
  const Results base = RunAll({}, requests_);
  Learn(base);
  EXPECT_EQ(Difference(base, RunWithDrafts({})), "");
  const auto with = [&](const std::function<void(Ops&)>& change) {
    return Difference(base, RunWithDrafts({}, change));
  };
  EXPECT_NE(with([](Ops& ops) { ops.verify_drafts.run = VerifyNothing; }), "");
  EXPECT_NE(with([](Ops& ops) { ops.adjust_logits.run = AdjustAsTheFirst; }), "");
}

}  // namespace
}  // namespace fathom
