// Where a checkpoint's files are.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace fathom {

// The folder with config.json that `path` stands for: itself; the snapshot that refs/main of a
// Hugging Face cache folder ("models--org--name") names; or that of a hub id ("org/name") in the
// local cache, where HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME say, or ~/.cache/huggingface/hub.
// kNotFound, with what to download, for a hub id that is not there; kInvalidArgument for a file or
// a folder without config.json.
Result<std::string> ResolveFolder(const std::string& path);

// What to call a model: "org/name" for a hub id and for folders of the cache, otherwise the
// folder's own name.
std::string ModelName(const std::string& path);

struct WeightFiles {
  std::vector<std::string> names;  // safetensors files in the folder
  // From model.safetensors.index.json: tensor -> index into `names`. Empty without an index.
  std::unordered_map<std::string, int32_t> index;
};
// model.safetensors if it is there, or else the files of model.safetensors.index.json, which need
// not exist. Names from the index that lead out of the folder are refused.
Result<WeightFiles> FindWeightFiles(const std::string& folder);

}  // namespace fathom
