#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "checkpoint/schema.h"
#include "checkpoint/testing.h"

namespace fathom {
namespace {

using testing::RandomTensor;
using testing::Safetensors;
using testing::SmallConfig;
using testing::SmallModel;
using testing::TestFolder;
using testing::TestTensor;
using testing::WithHeader;

ModelConfig Config(const std::vector<std::string>& edits = {}) {
  Result<ModelConfig> config = ParseModelConfig(SmallConfig(edits));
  CHECK(config.ok(), "{}", config.status().ToString());
  return *std::move(config);
}

std::string OpenError(const std::string& path) {
  const Result<Checkpoint> checkpoint = Checkpoint::Open(path);
  return checkpoint.ok() ? "no error" : checkpoint.status().message();
}

TestTensor& Named(std::vector<TestTensor>& tensors, std::string_view name) {
  for (TestTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  CHECK(false, "no tensor {}", name);
}

void Remove(std::vector<TestTensor>& tensors, std::string_view name) {
  CHECK(std::erase_if(tensors, [&](const TestTensor& t) { return t.name == name; }) == 1);
}

// The error for a small model after `edit`.
template <class Edit>
std::string ErrorAfter(Edit edit) {
  TestFolder folder;
  std::vector<TestTensor> tensors = SmallModel(Config());
  edit(tensors);
  folder.WriteModel(SmallConfig(), tensors);
  return OpenError(folder.path());
}

#define EXPECT_HAS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "looked for: " << (part) << "\nin: " << (text)

TEST(Checkpoint, OpensWhatTheRepositoryHolds) {
  for (const char* folder : {"models/tiny-r1", "tests/golden/v2-lite", "tests/golden/v2",
                             "tests/golden/v3", "tests/golden/v3-fp8"}) {
    const Result<Checkpoint> checkpoint = Checkpoint::Open(folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    EXPECT_TRUE(checkpoint->warnings().empty());
    uint64_t bytes = 0;
    for (const StoredTensor& tensor : checkpoint->tensors()) {
      EXPECT_TRUE(tensor.in_schema) << tensor.name;
      bytes += tensor.bytes;
    }
    EXPECT_EQ(bytes, checkpoint->total_bytes());
  }
}

TEST(Checkpoint, TinyR1) {
  Result<Checkpoint> opened = Checkpoint::Open("models/tiny-r1");
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const Checkpoint checkpoint = *std::move(opened);
  EXPECT_EQ(checkpoint.files().size(), 3u);
  EXPECT_EQ(checkpoint.generation().temperature, 0.6f);
  EXPECT_EQ(checkpoint.config().eos, std::vector<TokenId>{TokenId{4083}});
  EXPECT_EQ(checkpoint.total_bytes(), 25876728u);  // the index's metadata.total_size
  EXPECT_TRUE(checkpoint.Has("model.layers.6.eh_proj.weight"));
  EXPECT_FALSE(checkpoint.Has("model.layers.7.eh_proj.weight"));

  // Read with Python: safetensors and torch, q.float() * scale.
  const WeightTensor w = checkpoint.Get("model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
  EXPECT_EQ(w.values.ToString(), "F8_E4M3 [576, 256]");
  EXPECT_EQ(w.scales.ToString(), "F32 [5, 2]");
  EXPECT_EQ(Dequantize(w, 0, 0), -0x1.376db8p-6f);
  EXPECT_EQ(Dequantize(w, 575, 255), -0x1.252492p-4f);
  const WeightTensor norm = checkpoint.Get("model.norm.weight");
  EXPECT_EQ(norm.values.ToString(), "BF16 [256]");
  EXPECT_EQ(ToFloat(norm.values.As<BF16>()[7]), 4.125f);
  EXPECT_EQ(Dequantize(checkpoint.Get("lm_head.weight"), 4000, 100), -0x1.e4p-4f);

  EXPECT_EQ(checkpoint.Bytes("model.layers.0.self_attn.kv_a_proj_with_mqa.weight"),
            576u * 256u + 5u * 2u * 4u);
  // What was dropped can still be had, from the file.
  checkpoint.Drop("model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
  EXPECT_EQ(
      Dequantize(checkpoint.Get("model.layers.0.self_attn.kv_a_proj_with_mqa.weight"), 575, 255),
      -0x1.252492p-4f);
}

TEST(Checkpoint, ValuesSurviveARoundTrip) {
  TestFolder folder;
  const std::vector<TestTensor> tensors = SmallModel(Config());
  folder.WriteModel(SmallConfig(), tensors);
  folder.Write("generation_config.json", R"({"temperature": 0.25})");
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->generation().temperature, 0.25f);
  EXPECT_EQ(checkpoint->tensors().size(), tensors.size());
  size_t compared = 0;
  for (const TestTensor& tensor : tensors) {
    if (tensor.name.ends_with("_scale_inv")) continue;
    const WeightTensor w = checkpoint->Get(tensor.name);
    ASSERT_EQ(std::string_view(static_cast<const char*>(w.values.data()), tensor.bytes.size()),
              tensor.bytes);
    ASSERT_EQ(w.scales.absent(), tensor.dtype != "F8_E4M3");
    compared += tensor.bytes.size();
  }
  EXPECT_GT(compared, 100000u);
}

// The format allows it, though today's writers do not do it.
TEST(Checkpoint, UnalignedTensors) {
  TestFolder folder;
  std::vector<TestTensor> tensors = SmallModel(Config());
  tensors.insert(tensors.begin(), {"odd", "U8", {1}, "x"});
  folder.WriteModel(SmallConfig(), tensors);
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const std::string name = "model.layers.0.self_attn.q_a_proj.weight";
  for (int time = 0; time < 2; ++time) {
    const WeightTensor w = checkpoint->Get(name);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(w.scales.data()) % alignof(float), 0u);
    EXPECT_EQ(std::string_view(static_cast<const char*>(w.scales.data()), 8),
              Named(tensors, name + "_scale_inv").bytes);
    EXPECT_TRUE(std::isfinite(Dequantize(w, 15, 159)));
    checkpoint->Drop(name);
  }
}

TEST(Checkpoint, F16AndF32Weights) {
  TestFolder folder;
  const std::vector<std::string> edits = {"quantization_config="};
  std::vector<TestTensor> tensors = SmallModel(Config(edits));
  Named(tensors, "model.norm.weight").dtype = "F16";
  TestTensor& head = Named(tensors, "lm_head.weight");
  head = RandomTensor("lm_head.weight", DType::kF32, {20, 160});
  std::swap(head, tensors.front());
  folder.WriteModel(SmallConfig(edits), tensors);
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->Get("lm_head.weight").values.dtype(), DType::kF32);
  EXPECT_EQ(checkpoint->Get("model.norm.weight").values.dtype(), DType::kF16);
}

TEST(Checkpoint, OptionalTensors) {
  TestFolder folder;
  std::vector<TestTensor> tensors = SmallModel(Config());
  Remove(tensors, "model.layers.2.embed_tokens.weight");
  Remove(tensors, "model.layers.2.shared_head.head.weight");
  Remove(tensors, "lm_head.weight");
  folder.WriteModel(SmallConfig(), tensors);
  EXPECT_HAS(OpenError(folder.path()), "lm_head.weight: missing");
  folder.Write("config.json", SmallConfig({"tie_word_embeddings=true"}));
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_FALSE(checkpoint->Has("lm_head.weight"));
}

TEST(Checkpoint, OtherTensorsAreIgnoredWithAWarning) {
  TestFolder folder;
  std::vector<TestTensor> tensors = SmallModel(Config());
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "I8", {2}, "xx"});
  tensors.push_back({"strange", "F4", {5}, "yyy"});
  folder.WriteModel(SmallConfig(), tensors);
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  ASSERT_EQ(checkpoint->warnings().size(), 1u);
  EXPECT_HAS(checkpoint->warnings()[0], "2 tensors are not part of the model");
  EXPECT_HAS(checkpoint->warnings()[0], "rotary_emb.inv_freq");
}

TEST(CheckpointErrors, Missing) {
  const std::string error = ErrorAfter([](auto& tensors) {
    Remove(tensors, "model.layers.1.mlp.experts.3.up_proj.weight");
    Remove(tensors, "model.norm.weight");
    Remove(tensors, "model.layers.0.self_attn.o_proj.weight_scale_inv");
  });
  EXPECT_HAS(error,
             "model.layers.1.mlp.experts.3.up_proj.weight: missing from model.safetensors; "
             "[24, 160] (moe_intermediate_size, hidden_size) is expected");
  EXPECT_HAS(error, "model.norm.weight: missing");
  EXPECT_HAS(error, "model.layers.0.self_attn.o_proj.weight_scale_inv: missing");
  EXPECT_HAS(error, "F32 [2, 1] is expected");
}

TEST(CheckpointErrors, Shape) {
  const std::string error = ErrorAfter([](auto& tensors) {
    Named(tensors, "model.layers.0.self_attn.q_b_proj.weight").shape = {16, 24};
    Named(tensors, "model.norm.weight").shape = {160, 1};
    Named(tensors, "model.layers.0.mlp.gate_proj.weight_scale_inv").shape = {4, 1};
  });
  EXPECT_HAS(error,
             "model.layers.0.self_attn.q_b_proj.weight: F8_E4M3 [16, 24] in "
             "model.safetensors, but [24, 16]");
  EXPECT_HAS(error, "model.norm.weight: BF16 [160, 1]");
  EXPECT_HAS(error, "model.layers.0.mlp.gate_proj.weight_scale_inv: F32 [4, 1]");
  EXPECT_HAS(error, "F32 [2, 2] is expected");
}

TEST(CheckpointErrors, Type) {
  const std::string error = ErrorAfter([](auto& tensors) {
    Named(tensors, "model.norm.weight").dtype = "I16";
    Named(tensors, "model.layers.0.self_attn.q_a_proj.weight").dtype = "U8";
    Named(tensors, "model.layers.0.self_attn.kv_b_proj.weight_scale_inv").dtype = "I32";
    TestTensor& gate = Named(tensors, "model.layers.1.mlp.gate.weight");
    gate = RandomTensor(gate.name, DType::kF8E4M3, gate.shape);
    Named(tensors, "lm_head.weight").dtype = "F5_X";
  });
  EXPECT_HAS(error, "model.norm.weight: I16 [160]");
  EXPECT_HAS(error, "model.layers.0.self_attn.q_a_proj.weight: U8 [16, 160]");
  EXPECT_HAS(error, "must be BF16, F16 or F32, or F8_E4M3 with scales");
  EXPECT_HAS(error, "model.layers.0.self_attn.kv_b_proj.weight_scale_inv: I32");
  EXPECT_HAS(error, "model.layers.1.mlp.gate.weight: F8_E4M3 [4, 160]");
  EXPECT_HAS(error, "lm_head.weight: F5_X");
}

TEST(CheckpointErrors, Fp8WithoutOrAgainstTheConfig) {
  TestFolder folder;
  folder.WriteModel(SmallConfig({"quantization_config="}), SmallModel(Config()));
  EXPECT_HAS(OpenError(folder.path()),
             "o_proj.weight: F8_E4M3 [160, 24] in model.safetensors, but config.json has no "
             "quantization_config");

  const std::string error = ErrorAfter([](auto& tensors) {
    TestTensor& w = Named(tensors, "model.layers.0.self_attn.o_proj.weight");
    w = RandomTensor(w.name, DType::kBF16, w.shape);
    std::swap(w, tensors[0]);
  });
  EXPECT_HAS(error,
             "o_proj.weight_scale_inv: in model.safetensors, but "
             "model.layers.0.self_attn.o_proj.weight is not FP8");
}

TEST(CheckpointErrors, BytesDisagreeWithShape) {
  const std::string error = ErrorAfter([](auto& tensors) {
    Named(tensors, "model.norm.weight").bytes += "1234";
    Named(tensors, "lm_head.weight").shape = {int64_t{1} << 40, int64_t{1} << 40};
  });
  EXPECT_HAS(error,
             "model.norm.weight: BF16 [160] needs 320 bytes, but model.safetensors gives it "
             "324");
  EXPECT_HAS(error, "lm_head.weight: BF16 [1099511627776, 1099511627776] needs too many bytes");
}

TEST(CheckpointErrors, CutOff) {
  TestFolder folder;
  const std::string file = Safetensors(SmallModel(Config()));
  folder.Write("config.json", SmallConfig());
  folder.Write("model.safetensors", file.substr(0, file.size() - 10));
  EXPECT_HAS(OpenError(folder.path()), "lie beyond the end of model.safetensors");
  folder.Write("model.safetensors", file.substr(0, 100));
  EXPECT_HAS(OpenError(folder.path()), "cut off");
  folder.Write("model.safetensors", file.substr(0, 5));
  EXPECT_HAS(OpenError(folder.path()), "cut off: 5 bytes");
  folder.Write("model.safetensors", "");
  EXPECT_HAS(OpenError(folder.path()), "cut off: 0 bytes");
  folder.Write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n");
  EXPECT_HAS(OpenError(folder.path()), "git lfs pull");
}

TEST(CheckpointErrors, Header) {
  TestFolder folder;
  folder.Write("config.json", SmallConfig({"quantization_config="}));
  const auto error = [&](std::string_view header, std::string_view data) {
    folder.Write("model.safetensors", WithHeader(header, data));
    return OpenError(folder.path());
  };
  EXPECT_HAS(error("[]", ""), "not a JSON object");
  EXPECT_HAS(error("{\"a\":", ""), "not valid JSON");
  EXPECT_HAS(error(std::string(1 << 20, '['), ""), "not valid JSON");
  EXPECT_HAS(error(R"({"a":5})", ""), "a: malformed entry");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1]}})", ""), "malformed");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "x"), "malformed");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,1]}})", "x"), "malformed");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", "x"), "malformed");
  EXPECT_HAS(error(R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})", "x"), "malformed");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", "x"),
             "malformed");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                   R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                   "xyz"),
             "b: overlaps a in model.safetensors");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", "xyz"),
             "bytes [0, 2) before a belong to no tensor");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "xyz"),
             "its last 2 bytes belong to no tensor");
  EXPECT_HAS(
      error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,4611686018427387905]}})", "x"),
      "malformed");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4611686018427387800,)"
                   R"(4611686018427387804]}})",
                   "x"),
             "a: bytes [4611686018427387800, 4611686018427387804) lie beyond the end");
}

TEST(CheckpointErrors, LongListsAreCut) {
  TestFolder folder;
  const std::vector<std::string> edits = {"n_routed_experts=256"};
  folder.WriteModel(SmallConfig(edits), SmallModel(Config()));
  const std::string error = OpenError(folder.path());
  EXPECT_HAS(error, "problems");
  EXPECT_HAS(error, "\n  and ");
  EXPECT_LT(error.size(), 40000u);
}

TEST(CheckpointErrors, HostileNamesAreMadePrintable) {
  const std::string error = ErrorAfter([](auto& tensors) {
    tensors.push_back({std::string(10000, 'n') + "\\u001b[31m", "I16", {1}, "x"});
  });
  EXPECT_EQ(error.find('\x1b'), std::string::npos);
  EXPECT_LT(error.size(), 2000u);
}

TEST(CheckpointErrors, NoMtpLayer) {
  const std::string error = ErrorAfter([](auto& tensors) {
    std::erase_if(tensors,
                  [](const TestTensor& t) { return t.name.find("layers.2.") != t.name.npos; });
  });
  EXPECT_HAS(error, "set num_nextn_predict_layers to 0");
  EXPECT_EQ(error.find("enorm"), std::string::npos);
}

// A sharded folder: the first half of the tensors in a, the others in b.
struct Sharded {
  TestFolder folder;
  std::vector<TestTensor> a, b;
  std::string map;

  Sharded() {
    b = SmallModel(Config());
    a.assign(b.begin(), b.begin() + static_cast<ptrdiff_t>(b.size() / 2));
    b.erase(b.begin(), b.begin() + static_cast<ptrdiff_t>(a.size()));
    for (const TestTensor& tensor : a) map += fmt::format("\"{}\":\"a.safetensors\",", tensor.name);
    for (const TestTensor& tensor : b) map += fmt::format("\"{}\":\"b.safetensors\",", tensor.name);
    map.pop_back();
  }
  std::string Open() const {
    folder.Write("config.json", SmallConfig());
    folder.Write("a.safetensors", Safetensors(a));
    folder.Write("b.safetensors", Safetensors(b));
    return Reopen();
  }
  std::string Reopen() const {
    folder.Write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
    return OpenError(folder.path());
  }
};

TEST(CheckpointSharded, Opens) {
  EXPECT_EQ(Sharded().Open(), "no error");
}

TEST(CheckpointSharded, MissingFile) {
  Sharded s;
  s.Open();
  std::filesystem::remove(s.folder.path() + "/b.safetensors");
  const std::string error = s.Reopen();
  EXPECT_HAS(error, "b.safetensors: cannot open");
  EXPECT_HAS(error, fmt::format("{} tensors are in that file", s.b.size()));
  EXPECT_EQ(error.find(s.b[0].name), std::string::npos) << "one line for the file, not each tensor";
}

TEST(CheckpointSharded, MissingFromItsFile) {
  Sharded s;
  const std::string name = s.b.back().name;
  s.b.pop_back();
  EXPECT_HAS(s.Open(), name + ": missing from b.safetensors, where the index has it");
}

TEST(CheckpointSharded, InAnotherFile) {
  Sharded s;
  std::swap(s.a.back(), s.b.front());
  EXPECT_HAS(s.Open(), "the index says b.safetensors, but it is in a.safetensors");
}

TEST(CheckpointSharded, Twice) {
  Sharded s;
  s.b.insert(s.b.begin(), s.a.front());
  EXPECT_HAS(s.Open(), s.a.front().name + ": in a.safetensors and again in b.safetensors");
}

TEST(CheckpointSharded, FileNamesStayInTheFolder) {
  for (const char* name : {"../a.safetensors", "/etc/passwd", "x/y.safetensors", "..", ""}) {
    Sharded s;
    s.map += fmt::format(",\"x\":\"{}\"", name);
    EXPECT_HAS(s.Open(), "is mapped to what is not a file name in the folder");
  }
  Sharded s;
  s.map += ",\"x\":5";
  EXPECT_HAS(s.Open(), "is mapped to what is not a file name");
}

TEST(CheckpointSharded, BadIndex) {
  Sharded s;
  s.Open();
  for (const char* text : {"{}", "[]", "{", R"({"weight_map":{}})", R"({"weight_map":[]})"}) {
    s.folder.Write("model.safetensors.index.json", text);
    EXPECT_HAS(OpenError(s.folder.path()), "index.json") << text;
  }
}

TEST(CheckpointFolder, WhatIsNotOne) {
  EXPECT_HAS(OpenError("/no/such/folder"), "there is no folder /no/such/folder");
  EXPECT_HAS(OpenError("models/tiny-r1/config.json"), "is a file: pass the folder that holds it");
  EXPECT_HAS(OpenError("tests/golden"), "tests/golden has no config.json");
  TestFolder folder;
  folder.Write("config.json", SmallConfig());
  EXPECT_HAS(OpenError(folder.path()), "has no weights");
  folder.Write("pytorch_model.bin", "x");
  EXPECT_HAS(OpenError(folder.path()), "convert them to safetensors");
  folder.Write("model-00001-of-00002.safetensors", "x");
  EXPECT_HAS(OpenError(folder.path()), "its index is missing");
  folder.Write("config.json", std::string(2 << 20, ' '));
  EXPECT_HAS(OpenError(folder.path()), "at most 1048576 are read");
  folder.Write("config.json", SmallConfig());
  folder.Write("generation_config.json", R"({"top_p": 7})");
  EXPECT_HAS(OpenError(folder.path()), "top_p");
}

TEST(CheckpointFolder, HubIdsSayWhatToDownload) {
  TestFolder cache;
  setenv("HF_HUB_CACHE", cache.path().c_str(), 1);
  const std::string error = OpenError("deepseek-ai/DeepSeek-V2-Lite");
  EXPECT_HAS(error,
             "huggingface-cli download deepseek-ai/DeepSeek-V2-Lite --local-dir "
             "DeepSeek-V2-Lite");
  cache.Write("models--deepseek-ai--DeepSeek-V2-Lite/refs/main", "abc");
  EXPECT_HAS(OpenError("deepseek-ai/DeepSeek-V2-Lite"),
             "pass " + cache.path() + "/models--deepseek-ai--DeepSeek-V2-Lite");
  unsetenv("HF_HUB_CACHE");
}

TEST(CheckpointFolder, HubCache) {
  TestFolder cache;
  const std::string root = cache.path() + "/models--org--name";
  const std::string weights = Safetensors(SmallModel(Config()));
  cache.Write("models--org--name/blobs/1", weights);
  cache.Write("models--org--name/snapshots/0123abc/config.json", SmallConfig());
  std::filesystem::create_symlink("../../blobs/1", root + "/snapshots/0123abc/model.safetensors");
  EXPECT_EQ(OpenError(root), "no error");  // the only snapshot
  cache.Write("models--org--name/snapshots/99/config.json", "{}");
  EXPECT_HAS(OpenError(root), "has no refs/main and 2 snapshots");
  cache.Write("models--org--name/refs/main", "0123abc\n");
  const Result<Checkpoint> checkpoint = Checkpoint::Open(root);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->folder(), root + "/snapshots/0123abc");
  EXPECT_EQ(OpenError(root + "/snapshots/0123abc"), "no error");
  cache.Write("models--org--name/refs/main", "../../etc");
  EXPECT_HAS(OpenError(root), "does not name a revision");
  cache.Write("models--org--name/refs/main", "deadbeef");
  EXPECT_HAS(OpenError(root), "the download is not complete");
}

// The number of tensors of DeepSeek-V3: 61 layers and one for MTP, 256 experts, FP8 with scales.
TEST(Checkpoint, AsManyTensorsAsV3AreCheckedWithinTwoSeconds) {
  TestFolder folder;
  const std::vector<std::string> edits = {"num_hidden_layers=61", "first_k_dense_replace=3",
                                          "n_routed_experts=256", "moe_intermediate_size=1",
                                          "hidden_size=4",        "intermediate_size=1"};
  const ModelConfig config = Config(edits);
  const std::vector<TestTensor> tensors = SmallModel(config);
  EXPECT_EQ(tensors.size(), 91991u);
  folder.WriteModel(SmallConfig(edits), tensors);
  const std::clock_t begin = std::clock();  // the processor's time: other work does not count
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder.path());
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_LT(seconds, 2.0);
  std::printf("%zu tensors checked in %.0f ms\n", tensors.size(), seconds * 1000);
}

TEST(Schema, PatternsAndShapes) {
  const ModelConfig config = Config();
  EXPECT_GT(Schema().size(), 20u);
  for (const SchemaEntry& entry : ExpectedTensors(config)) {
    EXPECT_EQ(entry.name.find('{'), std::string::npos);
    EXPECT_EQ(entry.layer >= 0, entry.rule->scope != TensorRule::kModel);
    const std::vector<int64_t> shape = Shape(*entry.rule, config);
    EXPECT_EQ(shape.size(), entry.rule->kind == TensorRule::kVector ? 1u : 2u);
    // What is cut by head has whole heads.
    const bool head_rows = entry.rule->axis == ShardAxis::kHeadRows;
    const bool head_cols = entry.rule->axis == ShardAxis::kHeadCols;
    EXPECT_TRUE(!head_rows || shape[0] % config.num_heads == 0);
    EXPECT_TRUE(!head_cols || shape[1] % config.num_heads == 0);
  }
}

// The sizes that DeepSeek publishes: V3 671 B parameters, and for MTP 11.5 B with an embedding and
// a head of 0.9 B each; V2-Lite 15.7 B.
TEST(Schema, PublishedParameterCounts) {
  const auto count = [](const std::vector<std::string>& edits, bool mtp) {
    const ModelConfig config = Config(edits);
    double parameters = 0;
    for (const SchemaEntry& entry : ExpectedTensors(config)) {
      if ((entry.layer >= config.num_layers) != mtp) continue;
      double elements = 1;
      for (const int64_t size : Shape(*entry.rule, config)) elements *= static_cast<double>(size);
      parameters += elements;
    }
    return parameters / 1e9;
  };
  const std::vector<std::string> v3 = {"vocab_size=129280",
                                       "hidden_size=7168",
                                       "intermediate_size=18432",
                                       "moe_intermediate_size=2048",
                                       "num_hidden_layers=61",
                                       "num_attention_heads=128",
                                       "num_key_value_heads=128",
                                       "q_lora_rank=1536",
                                       "kv_lora_rank=512",
                                       "qk_nope_head_dim=128",
                                       "qk_rope_head_dim=64",
                                       "v_head_dim=128",
                                       "n_routed_experts=256",
                                       "num_experts_per_tok=8",
                                       "n_group=8",
                                       "topk_group=4",
                                       "first_k_dense_replace=3"};
  EXPECT_NEAR(count(v3, false), 671.0, 0.1);
  EXPECT_NEAR(count(v3, true), 11.5 + 2 * 0.93, 0.15);
  const std::vector<std::string> lite = {"model_type=\"deepseek_v2\"",
                                         "scoring_func=\"softmax\"",
                                         "topk_method=\"greedy\"",
                                         "norm_topk_prob=false",
                                         "num_nextn_predict_layers=",
                                         "vocab_size=102400",
                                         "hidden_size=2048",
                                         "intermediate_size=10944",
                                         "moe_intermediate_size=1408",
                                         "num_hidden_layers=27",
                                         "num_attention_heads=16",
                                         "num_key_value_heads=16",
                                         "q_lora_rank=null",
                                         "kv_lora_rank=512",
                                         "qk_nope_head_dim=128",
                                         "qk_rope_head_dim=64",
                                         "v_head_dim=128",
                                         "n_routed_experts=64",
                                         "n_shared_experts=2",
                                         "num_experts_per_tok=6",
                                         "first_k_dense_replace=1"};
  EXPECT_NEAR(count(lite, false), 15.7, 0.05);
}

}  // namespace
}  // namespace fathom
