// Two requests to tiny-r1 that share their steps, of which one is broken: its logits hold NaN.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "cpu/cpu_device.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "model/model.h"

namespace fathom {

struct SoundAndBroken {
  RequestOutput sound, broken;  // the last output of each
};

struct WantedLogprobs {
  int32_t of_sound = -1, of_broken = -1;  // -1: none
};

inline SoundAndBroken RunSoundAndBroken(int32_t max_tokens, WantedLogprobs wanted) {
  constexpr int32_t kLength = 256, kPages = 2 * kLength / kPageTokens;
  constexpr RequestId kSound{1}, kBroken{2};
  const Result<Checkpoint> checkpoint = Checkpoint::Open("models/tiny-r1");
  CHECK(checkpoint.ok(), "{}", checkpoint.status().message());
  CpuDevice device(1);
  const ModelOptions sizes{
      .max_tokens = 64, .max_rows = 2, .max_logit_vectors = 2, .max_model_len = kLength};
  const auto model = Model::Load(*checkpoint, CpuOps(Fp8Activations::kExact), device, sizes, {});
  CHECK(model.ok(), "{}", model.status().message());
  const EngineOptions options{.scheduler = {.max_num_seqs = 2,
                                            .max_num_batched_tokens = 64,
                                            .prefill_chunk = 64,
                                            .num_pages = kPages,
                                            .max_model_len = kLength,
                                            .absorbed_limit = kLength}};
  std::map<RequestId, RequestOutput> last;
  std::promise<void> ended;
  const SteadyClock clock;
  Engine engine(options,
                std::make_unique<ModelExecutor>(
                    **model, device, ModelExecutorOptions{.num_pages = kPages, .slots = 2}),
                &clock, [&](std::vector<RequestOutput> outputs) {
                  for (RequestOutput& output : outputs) {
                    if (output.finish) last[output.id] = std::move(output);
                  }
                  if (last.size() == 2) ended.set_value();
                });
  for (const RequestId id : {kSound, kBroken}) {
    GenerateRequest request;
    request.id = id;
    request.prompt = {TokenId{5}, TokenId{6}, TokenId{7}};
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    // Out of its range: makes logits infinite.
    if (id == kBroken) request.sampling.repetition_penalty = 1e-40f;
    request.sampling.logprobs = id == kBroken ? wanted.of_broken : wanted.of_sound;
    const Status status = engine.Submit(std::move(request));
    CHECK(status.ok(), "{}", status.message());
  }
  engine.Start();
  ended.get_future().wait();
  return {std::move(last[kSound]), std::move(last[kBroken])};
}

}  // namespace fathom
