// The fake device on plans made by hand: what no scheduler asks of it yet, and what it must refuse.
#include "simulation/fake_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "simulation/plan_text.h"

namespace fathom::simulation {
namespace {

// Chunks of 128; prompts' parts of them are expanded from 101 tokens on.
const SchedulerOptions kOptions = {.max_num_seqs = 2,
                                   .max_num_batched_tokens = 256,
                                   .prefill_chunk = 128,
                                   .num_pages = 10,
                                   .max_model_len = 512,
                                   .absorbed_limit = 100,
                                   .depth = 1,
                                   .max_drafts = 4};

// A device that is told steps one by one. Request n holds slot n.
class Bench {
 public:
  explicit Bench(Fault fault = Fault::kNone)
      : device_({.scheduler = kOptions,
                 .seed = 1,
                 .fault = fault,
                 .complain = [this](std::string text) { complaints.push_back(std::move(text)); }},
                &model, &clock_) {}

  // Requests `number` have the same prompt as far as `shared` goes.
  static GenerateRequest Request(uint64_t number, int32_t prompt, int32_t shared) {
    GenerateRequest request;
    request.id = RequestId{number};
    request.max_tokens = 20;
    for (int32_t at = 0; at < prompt; ++at) {
      const int32_t token = at < shared ? at * 7 : at * 5 + static_cast<int32_t>(number) + 1;
      request.prompt.push_back(TokenId{token % kVocab});
    }
    return request;
  }

  // Opens the request's slot in the next step, with so many positions in its pages already.
  void Open(const GenerateRequest& request, int32_t length = 0) {
    device_.Expect(request.id, request);
    plan_.openings.push_back(
        {.slot = Slot(request),
         .request = request.id,
         .params = std::make_shared<const RequestParams>(request),
         .generated = {},
         .length = length,
         .final_length = static_cast<int32_t>(request.prompt.size()) + request.max_tokens});
    table_[Raw(request.id)] = 0;
  }
  // A row of the prompt; `pages` are its new ones.
  void Prefill(const GenerateRequest& request, int32_t begin, int32_t end,
               const std::vector<int32_t>& pages, bool expanded) {
    StepRow row;
    row.form = expanded ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
    row.begin = begin;
    row.tokens.assign(request.prompt.begin() + begin, request.prompt.begin() + end);
    row.samples = end == static_cast<int32_t>(request.prompt.size());
    Add(request, std::move(row), pages);
  }
  void Decode(const GenerateRequest& request, int32_t drafts,
              const std::vector<int32_t>& pages = {}) {
    StepRow row;
    row.drafts = drafts;
    row.samples = true;
    Add(request, std::move(row), pages);
  }
  // Runs the step, and gathers what it brings.
  void Run() {
    StepPlan plan = std::exchange(plan_, {.step = plan_.step + 1, .openings = {}, .rows = {}});
    Widen(plan.shape, plan, /*logprobs=*/false);
    device_.Submit({.groups = {plan}});
    const StepResult result = device_.Wait();
    for (size_t r = 0; r < plan.rows.size(); ++r) {
      for (const GeneratedToken& token : result.rows[r].tokens) {
        tokens[Raw(plan.rows[r].request)].push_back(token.id);
      }
    }
  }
  // Whether a request's tokens so far are those that it must yield.
  bool Right(const GenerateRequest& request) {
    const auto expected = model.Answer(request, kOptions.max_model_len).tokens;
    const std::vector<TokenId>& got = tokens[Raw(request.id)];
    return !got.empty() && got.size() <= expected.size() &&
           std::equal(got.begin(), got.end(), expected.begin(),
                      [](TokenId a, const GeneratedToken& b) { return a == b.id; });
  }
  bool Complained(std::string_view what) const {
    return std::any_of(complaints.begin(), complaints.end(), [&](const std::string& complaint) {
      return complaint.find(what) != std::string::npos;
    });
  }

  const PretendModel model{17};
  std::vector<std::string> complaints;
  std::map<uint64_t, std::vector<TokenId>> tokens;

 private:
  static SlotId Slot(const GenerateRequest& request) {
    return SlotId{static_cast<int32_t>(Raw(request.id))};
  }
  void Add(const GenerateRequest& request, StepRow row, const std::vector<int32_t>& pages) {
    row.slot = Slot(request);
    row.request = request.id;
    int32_t& entries = table_[Raw(request.id)];
    row.first_new_page = entries;
    for (int32_t page : pages) row.new_pages.push_back(PageId{page});
    entries += static_cast<int32_t>(pages.size());
    plan_.rows.push_back(std::move(row));
  }

  VirtualClock clock_;
  FakeDevice device_;
  StepPlan plan_;
  std::map<uint64_t, int32_t> table_;  // entries of a request's page table
};

const GenerateRequest kFirst = Bench::Request(0, 200, 200);

// The first request has computed its prompt, in pages 0 to 3.
std::unique_ptr<Bench> WithFirst(Fault fault = Fault::kNone) {
  auto bench = std::make_unique<Bench>(fault);
  bench->Open(kFirst);
  bench->Prefill(kFirst, 0, 128, {0, 1}, /*expanded=*/true);
  bench->Run();
  bench->Prefill(kFirst, 128, 200, {2, 3}, /*expanded=*/false);
  bench->Run();
  EXPECT_EQ(bench->complaints, std::vector<std::string>());
  EXPECT_TRUE(bench->Right(kFirst));
  return bench;
}

TEST(FakeDevice, SlotOpensOnSharedPages) {
  auto bench = WithFirst();
  const GenerateRequest second = Bench::Request(1, 180, 150);
  bench->Open(second, 128);
  bench->Prefill(second, 128, 180, {0, 1, 4}, false);
  bench->Run();
  bench->Decode(kFirst, 4);
  bench->Decode(second, 4, {5});
  bench->Run();
  EXPECT_EQ(bench->complaints, std::vector<std::string>());
  EXPECT_TRUE(bench->Right(kFirst) && bench->Right(second));
}

// The rest of a chunk takes the form of the chunk's part of the prompt.
TEST(FakeDevice, SlotOpensInsideAChunk) {
  for (const bool expanded : {true, false}) {
    auto bench = WithFirst();
    const GenerateRequest second = Bench::Request(1, 140, 140);
    bench->Open(second, 64);
    bench->Prefill(second, 64, 128, {0, 4}, expanded);
    bench->Run();
    EXPECT_EQ(bench->Complained("another form at 64"), !expanded);
    if (!expanded) continue;
    bench->Prefill(second, 128, 140, {5}, false);
    bench->Run();
    EXPECT_EQ(bench->complaints, std::vector<std::string>());
    EXPECT_TRUE(bench->Right(second));
  }
}

TEST(FakeDevice, NoticesAWrongSharedPage) {
  const std::vector<std::vector<int32_t>> wrong = {{1, 0, 4}, {0, 2, 4}, {0, 9, 4}, {0, 0, 4}};
  for (const std::vector<int32_t>& pages : wrong) {
    auto bench = WithFirst();
    const GenerateRequest second = Bench::Request(1, 180, 150);
    bench->Open(second, 128);
    bench->Prefill(second, 128, 180, pages, false);
    bench->Run();
    EXPECT_TRUE(bench->Complained("holds something else")) << pages[0] << " " << pages[1];
  }
}

TEST(FakeDevice, NoticesAPrefixThatIsShorterThanWhatIsShared) {
  auto bench = WithFirst();
  const GenerateRequest second = Bench::Request(1, 180, 127);  // one token differs
  bench->Open(second, 128);
  bench->Prefill(second, 128, 180, {0, 1, 4}, false);
  bench->Run();
  EXPECT_TRUE(bench->Complained("position 127 holds something else"));
}

// The tokens are the same, but not their form: this prompt's part of the chunk is short.
TEST(FakeDevice, NoticesSharedTokensOfAnotherForm) {
  auto bench = WithFirst();
  const GenerateRequest second = Bench::Request(1, 90, 90);
  bench->Open(second, 64);
  bench->Prefill(second, 64, 90, {0, 4}, false);
  bench->Run();
  EXPECT_TRUE(bench->Complained("position 0 holds something else"));
}

TEST(FakeDevice, NoticesALengthThatIsTooLong) {
  auto bench = WithFirst();
  const GenerateRequest second = Bench::Request(1, 128, 128);
  bench->Open(second, 128);  // nothing is left whose logits could be sampled from
  bench->Decode(second, 0, {0, 1, 4});
  bench->Run();
  EXPECT_TRUE(bench->Complained("opens at 128 of 128 tokens"));
}

TEST(FakeDevice, NoticesARowThatBeginsElsewhere) {
  for (const int32_t begin : {0, 127, 129}) {
    auto bench = WithFirst();
    const GenerateRequest second = Bench::Request(1, 180, 150);
    bench->Open(second, 128);
    bench->Prefill(second, begin, begin < 128 ? 128 : 180, {0, 1, 4}, false);
    bench->Run();
    EXPECT_TRUE(bench->Complained("begins at its length")) << begin;
    EXPECT_TRUE(bench->Complained("another row was due")) << begin;
    EXPECT_TRUE(bench->Complained("after 128 tokens")) << begin;
  }
}

// What is written to a page that another request reads is noticed when that one reads it.
TEST(FakeDevice, NoticesAWriteToASharedPage) {
  auto bench = WithFirst();
  const GenerateRequest second = Bench::Request(1, 180, 150);
  bench->Open(second, 128);
  bench->Prefill(second, 128, 180, {0, 1, 2}, false);  // page 2 holds 128..191 of the first
  bench->Run();
  EXPECT_EQ(bench->complaints, std::vector<std::string>());
  bench->Decode(kFirst, 0);
  bench->Run();
  EXPECT_TRUE(bench->Complained("request 0: position 150 holds something else"));
}

// From the prompt's 200 tokens to the 220th: one comes with the prompt, and one row for each of the
// others finds less and less to do.
TEST(FakeDevice, DraftsAreVerifiedUpToTheEnd) {
  auto bench = WithFirst();
  for (int row = 0; row < 19; ++row) {
    bench->Decode(kFirst, std::min(row % 5, 18 - row));
    bench->Run();
  }
  EXPECT_EQ(bench->complaints, std::vector<std::string>());
  EXPECT_TRUE(bench->Right(kFirst));
  EXPECT_EQ(bench->tokens[0].size(), 20u);
}

TEST(FakeDevice, NoticesADraftWithoutAPage) {
  GenerateRequest request = Bench::Request(0, 60, 60);
  bool noticed = false;
  for (const int32_t prompt : {60, 61, 62, 63}) {
    request.prompt.resize(static_cast<size_t>(prompt));
    Bench bench;
    bench.Open(request);
    bench.Prefill(request, 0, prompt, {0}, false);
    bench.Run();
    bench.Decode(request, 4);
    bench.Run();
    noticed |= bench.Complained("no page for position 64");
  }
  EXPECT_TRUE(noticed);
}

TEST(FakeDevice, NoticesAnOpeningThatAsksForSomethingElse) {
  Bench bench;
  GenerateRequest request = Bench::Request(0, 60, 60);
  bench.Open(request);
  request.sampling.seed = 1;
  bench.Open(request);
  bench.Prefill(request, 0, 60, {0}, false);
  bench.Run();
  EXPECT_TRUE(bench.Complained("something else than was asked"));
}

TEST(PlanText, SaysAllOfAPlan) {
  StepPlan plan;
  const GenerateRequest request = Bench::Request(7, 3, 3);
  plan.step = 4;
  plan.openings.push_back({.slot = SlotId{1},
                           .request = request.id,
                           .params = std::make_shared<const RequestParams>(request),
                           .generated = {TokenId{5}},
                           .length = 2,
                           .final_length = 23});
  plan.rows.push_back({.slot = SlotId{1},
                       .request = request.id,
                       .form = AttentionForm::kExpanded,
                       .begin = 2,
                       .tokens = {TokenId{14}},
                       .new_pages = {PageId{8}, PageId{9}},
                       .samples = true,
                       .prompt_logprobs = true});
  plan.rows.push_back({.slot = SlotId{0}, .request = RequestId{2}, .drafts = 3, .samples = true});
  EXPECT_EQ(ToString(plan),
            "step 4\n"
            "  slot 1 opens for request 7: 3 + 1 tokens, from 2 to 23 at most\n"
            "  slot 1 request 7 expanded 2 + 1, pages[0..] 8 9, samples, scores\n"
            "  slot 0 request 2 decode + 3 drafts\n");
}

}  // namespace
}  // namespace fathom::simulation
