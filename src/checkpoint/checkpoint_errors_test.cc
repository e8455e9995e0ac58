// Folders that must be refused, and what must be said of them.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "checkpoint/folder.h"
#include "checkpoint/testing.h"

namespace fathom {
namespace {

using testing::Named;
using testing::OpenError;
using testing::RandomTensor;
using testing::Remove;
using testing::Safetensors;
using testing::SmallConfig;
using testing::SmallModel;
using testing::SmallModelConfig;
using testing::TestTensor;
using testing::WithHeader;

// The error for a small model after `edit`.
template <class Edit>
std::string ErrorAfter(Edit edit) {
  TestFolder folder;
  std::vector<TestTensor> tensors = SmallModel(SmallModelConfig());
  edit(tensors);
  WriteModel(folder, SmallConfig(), tensors);
  return OpenError(folder.path());
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

TEST(CheckpointErrors, ExpertsOfTwoTypes) {
  const std::string error = ErrorAfter([](auto& tensors) {
    Remove(tensors, "model.layers.1.mlp.shared_experts.down_proj.weight_scale_inv");
    TestTensor& w = Named(tensors, "model.layers.1.mlp.shared_experts.down_proj.weight");
    w = RandomTensor(w.name, DType::kBF16, w.shape);
  });
  EXPECT_HAS(error,
             "model.layers.1.mlp.experts.0.down_proj.weight: F8_E4M3 [160, 24] in "
             "model.safetensors, but model.layers.1.mlp.shared_experts.down_proj.weight is BF16");
  EXPECT_EQ(error.find("gate_proj"), std::string::npos) << error;
}

TEST(CheckpointErrors, Fp8WithoutOrAgainstTheConfig) {
  TestFolder folder;
  WriteModel(folder, SmallConfig({"quantization_config="}), SmallModel(SmallModelConfig()));
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
  const std::string file = Safetensors(SmallModel(SmallModelConfig()));
  folder.Write("config.json", SmallConfig());
  folder.Write("model.safetensors", file.substr(0, file.size() - 10));
  EXPECT_HAS(OpenError(folder.path()), "model.safetensors: cut off: it has ");
  const std::string half = (folder.Write("model.safetensors", file.substr(0, file.size() / 2)),
                            OpenError(folder.path()));
  EXPECT_HAS(half, "beyond its end: 35 tensors (model.layers.1.self_attn.o_proj.weight, ");
  EXPECT_HAS(half, ", and 15 more): download it again");
  EXPECT_EQ(half.find('\n'), std::string::npos) << "one line for the file, not each tensor";
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
             "a: overlaps 1 tensor (b) in model.safetensors");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", "xyz"),
             "bytes [0, 2) before a belong to no tensor");
  EXPECT_HAS(error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "xyz"),
             "its last 2 bytes belong to no tensor");
  EXPECT_HAS(
      error(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,4611686018427387905]}})", "x"),
      "malformed");
  EXPECT_HAS(
      error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4611686018427387800,)"
            R"(4611686018427387804]}})",
            "x"),
      "1 bytes of data and its header describes 4611686018427387804; beyond its end: 1 tensor (a)");
}

// Tensors of a byte each, but for `wide`, which says that it has [begin, end).
std::string WithOneWideTensor(int wide, int begin, int end) {
  std::string header = "{";
  for (int i = 0; i < 99; ++i) {
    const bool is_wide = i == wide;
    header += fmt::format(R"({}"t{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, is_wide ? end - begin : 1, is_wide ? begin : i,
                          is_wide ? end : i + 1);
  }
  return WithHeader(header + "}", std::string(99, 'x'));
}

// A wrong end lays a tensor over all that follow: one problem, not one for each of them.
TEST(CheckpointErrors, OverlapsOfOneTensorAreOneProblem) {
  TestFolder folder;
  folder.Write("config.json", SmallConfig({"quantization_config="}));
  folder.Write("model.safetensors", WithOneWideTensor(0, 0, 99));
  const std::string error = OpenError(folder.path());
  EXPECT_HAS(error, "t0: overlaps 98 tensors (t1, t2, ");
  EXPECT_HAS(error, ", and 78 more) in model.safetensors");
  EXPECT_EQ(error.find("overlaps"), error.rfind("overlaps"));
}

// A wrong begin lays it over all before: the first of them starts where it does.
TEST(CheckpointErrors, AWrongBeginIsNoLongList) {
  TestFolder folder;
  folder.Write("config.json", SmallConfig({"quantization_config="}));
  folder.Write("model.safetensors", WithOneWideTensor(98, 0, 99));
  const std::string error = OpenError(folder.path());
  EXPECT_HAS(error, "t0: overlaps 1 tensor (t98)");
  EXPECT_HAS(error, "t98: overlaps 97 tensors (t1, t2, ");
}

TEST(CheckpointErrors, LongListsAreCut) {
  TestFolder folder;
  const std::vector<std::string> edits = {"n_routed_experts=4096"};
  WriteModel(folder, SmallConfig(edits), SmallModel(SmallModelConfig()));
  const std::string error = OpenError(folder.path());
  EXPECT_HAS(error, "problems");
  EXPECT_HAS(error, "\n  and ");
  EXPECT_LT(error.size(), 4u << 20);
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
    b = SmallModel(SmallModelConfig());
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
  EXPECT_HAS(OpenError("models/no-such"), "there is no folder models/no-such");
  EXPECT_HAS(OpenError("models/tiny-r1/config.json"), "is a file: pass the folder that holds it");
  EXPECT_HAS(OpenError("tests/golden"), "tests/golden has no config.json");
  TestFolder folder;
  folder.Write("config.json", SmallConfig());
  EXPECT_HAS(OpenError(folder.path()), "has no weights");
  folder.Write("pytorch_model.bin", "x");
  EXPECT_HAS(OpenError(folder.path()), "convert them to safetensors");
  folder.Write("model-00001-of-00002.safetensors", "x");
  EXPECT_HAS(OpenError(folder.path()), "its index is missing");
  // As in a hub cache whose blob is gone.
  std::filesystem::create_symlink("../gone", folder.path() + "/model.safetensors");
  EXPECT_HAS(OpenError(folder.path()), "model.safetensors: No such file or directory: download it");
  folder.Write("config.json", "[");
  EXPECT_HAS(OpenError(folder.path()), "config.json: not valid JSON");
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
             "hf download deepseek-ai/DeepSeek-V2-Lite --local-dir "
             "DeepSeek-V2-Lite");
  EXPECT_HAS(error, "nor in the local Hugging Face cache (" + cache.path() + ")");
  unsetenv("HF_HUB_CACHE");
}

TEST(CheckpointFolder, HubIdsInTheLocalCacheAreTaken) {
  TestFolder cache;
  const std::string id = "deepseek-ai/DeepSeek-V2-Lite";
  const std::string model = "hub/models--deepseek-ai--DeepSeek-V2-Lite/";
  setenv("HF_HOME", cache.path().c_str(), 1);
  cache.Write(model + "refs/main", "abc");
  EXPECT_HAS(OpenError(id), "the download is not complete");
  cache.Write(model + "snapshots/abc/config.json", SmallConfig());
  cache.Write(model + "snapshots/abc/model.safetensors",
              Safetensors(SmallModel(SmallModelConfig())));
  const Result<Checkpoint> checkpoint = Checkpoint::Open(id);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->folder(), cache.path() + "/" + model + "snapshots/abc");
  EXPECT_EQ(ModelName(id), id);
  EXPECT_EQ(ModelName(checkpoint->folder()), id);
  EXPECT_EQ(ModelName(cache.path() + "/" + model), id);
  EXPECT_EQ(ModelName("models/tiny-r1"), "tiny-r1");
  unsetenv("HF_HOME");
}

TEST(CheckpointFolder, HubCache) {
  TestFolder cache;
  const std::string root = cache.path() + "/models--org--name";
  const std::string weights = Safetensors(SmallModel(SmallModelConfig()));
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

}  // namespace
}  // namespace fathom
