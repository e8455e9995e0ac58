// Where a checkpoint's files are.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace fathom {

// The folder with config.json that `path` stands for: itself, or the snapshot that refs/main of a
// Hugging Face cache folder ("models--org--name") names. kNotFound, with what to download, for a
// hub id; kInvalidArgument for a file or a folder without config.json.
Result<std::string> ResolveFolder(const std::string& path);

struct WeightFiles {
  std::vector<std::string> names;  // safetensors files in the folder
  // From model.safetensors.index.json: tensor -> index into `names`. Empty without an index.
  std::unordered_map<std::string, int32_t> index;
};
// model.safetensors if it is there, or else the files of model.safetensors.index.json, which need
// not exist. Names from the index that lead out of the folder are refused.
Result<WeightFiles> FindWeightFiles(const std::string& folder);

}  // namespace fathom
