// The real proposers, on whatever device a setting runs on: what they guess changes no bit.
#pragma once

#include <numeric>
#include <utility>
#include <vector>

#include "golden/run_requests.h"

namespace fathom {

// Answers of 40 tokens, with every penalty, bias and bound; some end at a stop token, once so many
// are generated.
inline std::vector<GenerateRequest> RequestsWithEveryParameter(const Setting& setting = {}) {
  std::vector<GenerateRequest> requests = MakeRequests();
  std::erase_if(requests, [](const auto& r) { return r.prompt.size() > 200; });
  for (GenerateRequest& request : requests) {
    const size_t i = Raw(request.id);
    request.max_tokens = 40;
    request.sampling.frequency_penalty = i % 3 == 1 ? 0.4f : 0.0f;
    request.sampling.presence_penalty = i % 4 == 2 ? 0.7f : 0.0f;
    request.sampling.min_p = i % 4 == 0 ? 0.05f : 0.0f;
    request.sampling.top_k = i % 6 == 2 ? 20 : request.sampling.top_k;
    if (i % 5 == 2) request.sampling.logit_bias = {{TokenId{77}, 6.0f}, {TokenId{2000}, -100.0f}};
  }
  const Results without_stops = RunAll(setting, requests);
  for (GenerateRequest& request : requests) {
    if (Raw(request.id) % 2 == 0) continue;
    const auto& tokens = without_stops.at(request.id);
    request.min_tokens = 12;
    request.stop_tokens = {tokens[4].id, tokens[20].id};
  }
  return requests;
}

// The real proposers. Answers to random prompts run in circles, which is easy to guess.
inline Setting WithNgrams(Setting setting, int32_t drafts) {
  setting.drafts = drafts;
  setting.ngram = NgramLookup{.least = 1, .most = 4};
  return setting;
}
inline Setting WithMtp(Setting setting, int32_t drafts) {
  setting.drafts = drafts;
  setting.mtp = true;
  return setting;
}

// Long enough to run in circles; half of them greedy. By what the setting answers without drafts.
inline std::vector<GenerateRequest> RequestsForRealDrafts(const Setting& setting = {}) {
  std::vector<GenerateRequest> requests = RequestsWithEveryParameter(setting);
  std::erase_if(requests, [](const auto& r) { return Raw(r.id) % 3 == 0; });
  for (GenerateRequest& request : requests) {
    request.max_tokens = 90;
    if (Raw(request.id) % 2 == 0) request.sampling = {.temperature = 0, .logprobs = 3};
  }
  return requests;
}

// `base`: what the setting answers without.
inline void ExpectRealDraftsChangeNoBit(const Setting& setting,
                                        const std::vector<GenerateRequest>& requests,
                                        const Results& base, const std::vector<int32_t>& depths) {
  for (const int32_t drafts : depths) {
    for (const Setting& real : {WithNgrams(setting, drafts), WithMtp(setting, drafts)}) {
      EngineStats stats;
      ExpectSameBits(base, RunBatches(real, {requests}, &stats));
      EXPECT_GT(stats.drafts.accepted, 5);
      EXPECT_GT(stats.drafts.proposed, stats.drafts.accepted);
      const auto& places = stats.drafts.accepted_at;
      EXPECT_EQ(places[static_cast<size_t>(drafts)], 0);
      EXPECT_EQ(std::accumulate(places.begin(), places.end(), int64_t{0}), stats.drafts.accepted);
    }
  }
}

inline void VerifyNothing(OpContext&, const VerifyDraftsArgs&) {}

// The canary of the above: a verifier that lets every draft stand.
inline void ExpectUnverifiedDraftsAreNoticed(Setting setting,
                                             const std::vector<GenerateRequest>& requests,
                                             const Results& base) {
  Ops ops = *setting.ops;
  ops.verify_drafts.run = VerifyNothing;
  setting.ops = &ops;
  for (const Setting& real : {WithNgrams(setting, 3), WithMtp(setting, 3)}) {
    EXPECT_NE(Difference(base, RunAll(real, requests)), "");
  }
}

}  // namespace fathom
