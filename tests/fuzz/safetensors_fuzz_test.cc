// Damaged checkpoints: whatever the bytes, opening ends in success or in an error, never in a crash
// or a read outside the file. Every case is a function of its number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/testing.h"

namespace fathom {
namespace {

using testing::Safetensors;
using testing::SmallConfig;
using testing::SmallModel;

// Pieces that parsers stumble over.
constexpr const char* kTokens[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   "\"",
                                   ":",
                                   ",",
                                   "-1",
                                   "0",
                                   "1e308",
                                   "null",
                                   "true",
                                   "\\u0000",
                                   "\xff",
                                   "128",
                                   "[]",
                                   "{}",
                                   "1e-9",
                                   "BF16",
                                   "\"F8_E4M3\"",
                                   "[0,0]",
                                   "9223372036854775807",
                                   "18446744073709551615",
                                   "\"dtype\":"};

// One to four edits of the first `limit` bytes: a changed byte, a piece set in, a run removed or
// repeated, a digit changed, or the end cut off.
std::string Mutate(std::string text, size_t limit, Rng& rng) {
  for (uint32_t edits = 1 + rng.Below(4); edits > 0 && !text.empty(); --edits) {
    const auto size = static_cast<uint32_t>(std::min(text.size(), limit));
    const size_t at = rng.Below(size);
    const size_t run = std::min<size_t>(1 + rng.Below(40), text.size() - at);
    switch (rng.Below(6)) {
      case 0: text[at] = static_cast<char>(rng.Below(256)); break;
      case 1: text.insert(at, kTokens[rng.Below(std::size(kTokens))]); break;
      case 2: text.erase(at, run); break;
      case 3: text.insert(at, text.substr(at, run)); break;
      case 4: {
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit < size) text[digit] = static_cast<char>('0' + rng.Below(10));
        break;
      }
      case 5:
        if (rng.Below(4) == 0) text.resize(rng.Below(static_cast<uint32_t>(text.size()) + 1));
        break;
    }
  }
  return text;
}

struct Outcomes {
  int good = 0, bad = 0;
  void Count(bool ok) { ++(ok ? good : bad); }
};

TEST(SafetensorsFuzz, Header) {
  const std::string config = SmallConfig({"n_routed_experts=2", "n_group=1"});
  std::vector<testing::TestTensor> tensors = SmallModel(*ParseModelConfig(config));
  tensors.resize(8);
  const std::string whole = Safetensors(tensors);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), sizeof(header));
  Outcomes outcomes;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Rng rng(seed);
    const std::string text = Mutate(whole, header + 8, rng);
    // On the heap, to the byte, so that a sanitizer sees a read past the end.
    const auto bytes = std::make_unique<std::byte[]>(text.size());
    std::memcpy(bytes.get(), text.data(), text.size());
    Problems problems;
    const auto read = ReadSafetensorsHeader({bytes.get(), text.size()}, "fuzz", problems);
    outcomes.Count(read.ok() && problems.empty());
    if (!read.ok() || !problems.empty()) continue;
    for (const StoredTensor& tensor : *read) {
      ASSERT_LE(tensor.offset + tensor.bytes, text.size()) << "seed " << seed;
    }
  }
  EXPECT_GT(outcomes.good, 100);
  EXPECT_GT(outcomes.bad, 10000);
}

TEST(SafetensorsFuzz, Configs) {
  const std::string config = SmallConfig();
  const std::string generation =
      R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [1, 2]})";
  Outcomes configs, generations;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Rng rng(seed, 1);
    const Result<ModelConfig> parsed = ParseModelConfig(Mutate(config, config.size(), rng));
    configs.Count(parsed.ok());
    if (parsed.ok()) {
      EXPECT_GT(parsed->num_heads, 0);
      EXPECT_LE(parsed->num_experts_per_tok, parsed->n_routed_experts);
    }
    generations.Count(ParseGenerationConfig(Mutate(generation, 1000, rng), 20).ok());
  }
  EXPECT_GT(configs.good, 100);
  EXPECT_GT(configs.bad, 1000);
  EXPECT_GT(generations.good, 100);
  EXPECT_GT(generations.bad, 1000);
}

// Every byte of every tensor that the checkpoint offers.
uint64_t Touch(const Checkpoint& checkpoint) {
  uint64_t sum = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (!tensor.in_schema || tensor.name.ends_with("_scale_inv")) continue;
    const WeightTensor w = checkpoint.Get(tensor.name);
    const auto* data = static_cast<const unsigned char*>(w.values.data());
    for (uint64_t i = 0; i < tensor.bytes; ++i) sum += data[i];
    if (w.values.rank() == 2) {
      sum += Dequantize(w, w.values.dim(0) - 1, w.values.dim(1) - 1) > 0 ? 1 : 0;
    }
  }
  return sum;
}

TEST(SafetensorsFuzz, Folders) {
  const std::string config = SmallConfig();
  const std::vector<testing::TestTensor> tensors = SmallModel(*ParseModelConfig(config));
  const std::string weights = Safetensors(tensors);
  std::string index = R"({"weight_map":{)";
  for (const auto& tensor : tensors) index += "\"" + tensor.name + "\":\"w.safetensors\",";
  index.back() = '}';
  index += "}";
  uint64_t header = 0, sum = 0;
  std::memcpy(&header, weights.data(), sizeof(header));

  const TestFolder folder;
  Outcomes outcomes;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Rng rng(seed, 2);
    const uint32_t which = rng.Below(3);
    folder.Write("config.json", which == 0 ? Mutate(config, config.size(), rng) : config);
    folder.Write("w.safetensors", which == 1 ? Mutate(weights, header + 8, rng) : weights);
    folder.Write("model.safetensors.index.json",
                 which == 2 ? Mutate(index, index.size(), rng) : index);
    const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
    outcomes.Count(checkpoint.ok());
    if (checkpoint.ok()) {
      sum += Touch(*checkpoint);
    } else {
      ASSERT_FALSE(checkpoint.status().message().empty());
      ASSERT_LT(checkpoint.status().message().size(), 100000u);
    }
  }
  EXPECT_GT(sum, 0u);
  EXPECT_GT(outcomes.good, 20);
  EXPECT_GT(outcomes.bad, 200);
}

}  // namespace
}  // namespace fathom
