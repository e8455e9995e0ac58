#include "checkpoint/folder.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/mmap.h"
#include "checkpoint/json.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIndexBytes = 32 << 20;  // V3's has 9 MB
constexpr size_t kMaxFiles = 4096;
constexpr size_t kMaxRefBytes = 256;
constexpr size_t kMaxListed = 1000;  // entries of a folder that are looked at to help with an error
constexpr std::string_view kCached = "models--";  // a model's folder in the cache begins with it
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

bool IsFolder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Also of a link that leads nowhere: opening it then says so.
bool IsListed(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

// Letters, digits, '.', '_' and '-', and neither "." nor "..".
bool IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

// "org/name", as on the hub, where "org" is not a folder here.
bool LooksLikeHubId(std::string_view path) {
  const size_t slash = path.find('/');
  return slash != std::string_view::npos && IsPlainName(path.substr(0, slash)) &&
         IsPlainName(path.substr(slash + 1)) && !IsFolder(path.substr(0, slash));
}

// The folder where the Hugging Face libraries keep what they download; empty if unknown.
fs::path HubCache() {
  if (const char* cache = std::getenv("HF_HUB_CACHE")) return cache;
  if (const char* home = std::getenv("HF_HOME")) return fs::path(home) / "hub";
  if (const char* cache = std::getenv("XDG_CACHE_HOME")) return fs::path(cache) / "huggingface/hub";
  if (const char* home = std::getenv("HOME")) return fs::path(home) / ".cache/huggingface/hub";
  return {};
}

Status NotInHubCache(const std::string& id) {
  const std::string name = id.substr(id.find('/') + 1);
  return NotFound(
      "{} is neither a folder nor in the local Hugging Face cache ({}). fathom does not download "
      "models: run `hf download {} --local-dir {}` (pip install huggingface_hub), "
      "then pass the folder {}",
      id, HubCache().string(), id, name, name);
}

// The names of the folders in `folder`, sorted.
std::vector<std::string> SubFolders(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (names.size() == kMaxListed) break;
    if (IsFolder(it->path())) names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The snapshot of a cache folder: what refs/main names, or the only one.
Result<std::string> ResolveSnapshot(const fs::path& folder) {
  const fs::path ref = folder / "refs" / "main", snapshots = folder / "snapshots";
  std::string revision;
  if (Exists(ref)) {
    revision = TRY(ReadFile(ref.string(), kMaxRefBytes));
    while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back()))) {
      revision.pop_back();
    }
    if (!IsPlainName(revision)) return DataLoss("{} does not name a revision", ref.string());
  } else {
    const std::vector<std::string> names = SubFolders(snapshots);
    if (names.size() != 1) {
      return InvalidArgument("{} has no refs/main and {} snapshots: pass one folder of {}",
                             folder.string(), names.size(), snapshots.string());
    }
    revision = names[0];
  }
  const fs::path snapshot = snapshots / revision;
  if (!Exists(snapshot / "config.json")) {
    return NotFound("{} has no config.json: the download is not complete, run it again",
                    snapshot.string());
  }
  return snapshot.string();
}

// What else could be meant, for a folder without weights.
Status NoWeights(const std::string& folder) {
  std::string other;
  bool torch = false;
  std::error_code error;
  size_t seen = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (++seen > kMaxListed) break;
    const fs::path file = it->path().filename();
    if (file.extension() == ".safetensors" && other.empty()) other = file.string();
    torch = torch || file.extension() == ".bin" || file.extension() == ".pt";
  }
  std::string hint = ": download them into it";
  if (!other.empty()) {
    hint = fmt::format("; it has {}: its index is missing, download that too", Printable(other));
  } else if (torch) {
    hint = "; it has PyTorch files: convert them to safetensors";
  }
  return NotFound("{} has no weights ({} or {}){}", folder, kSingle, kIndex, hint);
}

// The snapshot of a hub id in the local cache.
Result<std::string> ResolveHubId(const std::string& id) {
  std::string cached{kCached};
  cached += id;
  cached.replace(cached.find('/'), 1, "--");
  const fs::path folder = HubCache() / cached;
  if (!IsFolder(folder)) return NotInHubCache(id);
  return ResolveSnapshot(folder);
}

}  // namespace

std::string ModelName(const std::string& path) {
  if (!Exists(path) && LooksLikeHubId(path)) return path;
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(path, error);
  if (error) return path;
  for (const fs::path& part : folder) {
    std::string name = part.string();
    if (!name.starts_with(kCached)) continue;
    name.erase(0, kCached.size());
    if (const size_t border = name.find("--"); border != std::string::npos) {
      return name.replace(border, 2, "/");
    }
  }
  const std::string name = folder.filename().string();
  return name.empty() ? path : name;
}

Result<std::string> ResolveFolder(const std::string& path) {
  if (!IsFolder(path)) {
    if (Exists(path)) return InvalidArgument("{} is a file: pass the folder that holds it", path);
    if (LooksLikeHubId(path)) return ResolveHubId(path);
    return NotFound("there is no folder {}", path);
  }
  if (Exists(fs::path(path) / "config.json")) return path;
  if (IsFolder(fs::path(path) / "snapshots")) return ResolveSnapshot(path);
  return InvalidArgument(
      "{} has no config.json: it is not a checkpoint in the Hugging Face layout, or not complete",
      path);
}

Result<WeightFiles> FindWeightFiles(const std::string& folder) {
  WeightFiles files;
  if (IsListed(fs::path(folder) / kSingle)) {
    files.names.emplace_back(kSingle);
    return files;
  }
  const fs::path index_path = fs::path(folder) / kIndex;
  if (!IsListed(index_path)) return NoWeights(folder);
  const std::string text = TRY(ReadFile(index_path.string(), kMaxIndexBytes));
  boost::json::monotonic_resource memory;
  const boost::json::object index = TRY(ParseJsonObject(kIndex, text, &memory));
  const boost::json::value* map = index.if_contains("weight_map");
  if (map == nullptr || !map->is_object() || map->get_object().empty()) {
    return DataLoss("{} has no weight_map: download it again", index_path.string());
  }
  std::unordered_map<std::string, int32_t> numbers;
  files.index.reserve(map->get_object().size());
  for (const auto& [key, value] : map->get_object()) {
    const boost::json::string* file = value.if_string();
    if (file == nullptr || !IsPlainName(*file)) {
      return DataLoss("{}: {} is mapped to what is not a file name in the folder", kIndex,
                      Printable({key.data(), key.size()}));
    }
    const auto [at, is_new] =
        numbers.try_emplace(std::string(*file), static_cast<int32_t>(files.names.size()));
    if (is_new) files.names.push_back(at->first);
    if (files.names.size() > kMaxFiles) {
      return ResourceExhausted("{} names more than {} files", kIndex, kMaxFiles);
    }
    files.index.emplace(std::string(key), at->second);
  }
  return files;
}

}  // namespace fathom
