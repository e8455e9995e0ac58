// Small checkpoint folders for tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/test_folder.h"
#include "checkpoint/model_config.h"
#include "tensor/dtype.h"

namespace fathom::testing {

// A tensor to be written; `bytes` may disagree with dtype and shape.
struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// Random values of the right size. FP8 codes are never NaN.
TestTensor RandomTensor(std::string name, DType dtype, std::vector<int64_t> shape);

// A safetensors file: the tensors one after another, the header padded to a multiple of 8 bytes.
std::string Safetensors(const std::vector<TestTensor>& tensors);
// A file with this header and `data` after it.
std::string WithHeader(std::string_view header, std::string_view data);

// config.json of a small V3: 2 layers and an MTP layer, sizes that fill scale tiles only partly.
// Each edit is "key=JSON", or "key=" to remove it; "a.b" is a key of the object a.
std::string SmallConfig(const std::vector<std::string>& edits = {});
ModelConfig SmallModelConfig(const std::vector<std::string>& edits = {});  // the same, parsed
// What the schema asks for, in the types of the published checkpoints: BF16, with FP8 for linear
// layers but eh_proj if the model is FP8, and F32 for e_score_correction_bias.
std::vector<TestTensor> SmallModel(const ModelConfig& config);

// The tensor of that name; REQUIRES: there is one.
TestTensor& Named(std::vector<TestTensor>& tensors, std::string_view name);
void Remove(std::vector<TestTensor>& tensors, std::string_view name);

// Expects `part` in the string `text`.
#define EXPECT_HAS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "looked for: " << (part) << "\nin: " << (text)

// What Checkpoint::Open says is wrong with a folder; "no error" if nothing is.
std::string OpenError(const std::string& path);

// config.json and model.safetensors.
void WriteModel(const TestFolder& folder, const std::string& config,
                const std::vector<TestTensor>& tensors);

}  // namespace fathom::testing
