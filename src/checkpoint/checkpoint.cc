#include "checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/machine_memory.h"
#include "base/mmap.h"
#include "checkpoint/dummy.h"
#include "checkpoint/folder.h"
#include "checkpoint/held_tensors.h"
#include "checkpoint/problems.h"
#include "checkpoint/schema.h"

namespace fathom {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr size_t kMaxTensors = 1 << 20;

std::string Join(const std::string& folder, std::string_view file) {
  return (std::filesystem::path(folder) / file).string();
}

std::string ScaleName(std::string_view name) {
  return std::string(name) + "_scale_inv";
}

}  // namespace

struct Checkpoint::Contents {
  std::string folder;
  ModelConfig config;
  GenerationConfig generation;
  WeightFiles weight_files;
  std::vector<std::optional<MappedFile>> mapped;  // as weight_files.names; absent if unreadable
  std::optional<DummyWeights> dummy;              // in place of files
  std::vector<StoredTensor> tensors;              // sorted by name
  std::unordered_map<std::string_view, size_t> by_name;  // into tensors
  std::vector<std::string> warnings;
  uint64_t total_bytes = 0;
  bool leaves_cache = false;  // what has been read, at once

  Status ReadConfigs();
  Status ReadHeaders(Problems& problems);
  void IndexNames(Problems& problems);
  void CheckIndex(Problems& problems);
  void CheckSchema(Problems& problems);
  bool MissingMtp(const std::vector<SchemaEntry>& expected) const;
  void CheckPresent(const SchemaEntry& entry, StoredTensor& tensor, Problems& problems);
  void CheckScales(StoredTensor& tensor, Problems& problems);
  void CheckGroups(const std::vector<SchemaEntry>& expected, Problems& problems);
  void AddMissing(const std::string& name, std::string_view shape, Problems& problems) const;
  void WarnOfOthers();

  StoredTensor* Find(std::string_view name) {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : &tensors[found->second];
  }
  const std::string& FileOf(const StoredTensor& tensor) const {
    return weight_files.names[static_cast<size_t>(tensor.file)];
  }
  // REQUIRES: there is such a tensor.
  const StoredTensor& At(std::string_view name) const {
    const auto found = by_name.find(name);
    CHECK(found != by_name.end(), "no tensor {}", name);
    return tensors[found->second];
  }
  std::span<const std::byte> BytesOf(const StoredTensor& tensor) const {
    if (dummy) return dummy->BytesOf(tensor);
    return mapped[static_cast<size_t>(tensor.file)]->bytes().subspan(tensor.offset, tensor.bytes);
  }
  TensorView View(const StoredTensor& tensor) const;
  void Drop(const StoredTensor& tensor) const;

  mutable HeldTensors held;
};

Status Checkpoint::Contents::ReadConfigs() {
  const std::string text = TRY(ReadFile(Join(folder, "config.json"), kMaxConfigBytes));
  Result<ModelConfig> parsed = ParseModelConfig(text);
  if (!parsed.ok()) return parsed.status().WithContext(folder);
  config = *std::move(parsed);
  const std::string path = Join(folder, "generation_config.json");
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  Result<GenerationConfig> sampling =
      ParseGenerationConfig(TRY(ReadFile(path, kMaxConfigBytes)), config.vocab_size);
  if (!sampling.ok()) return sampling.status().WithContext(folder);
  generation = *std::move(sampling);
  return {};
}

// Maps every file and gathers the tensors. Unreadable files are problems; an error stops.
Status Checkpoint::Contents::ReadHeaders(Problems& problems) {
  for (size_t i = 0; i < weight_files.names.size(); ++i) {
    const std::string& name = weight_files.names[i];
    Result<MappedFile> file = MappedFile::Open(Join(folder, name));
    mapped.emplace_back();
    if (!file.ok()) {
      const auto lost =
          std::count_if(weight_files.index.begin(), weight_files.index.end(),
                        [&](const auto& entry) { return entry.second == static_cast<int32_t>(i); });
      problems.Add("{}: {}{}: download it again", name, file.status().message(),
                   lost == 0 ? "" : fmt::format("; {} tensors are in that file", lost));
      continue;
    }
    Result<std::vector<StoredTensor>> header = ReadSafetensorsHeader(file->bytes(), name, problems);
    if (!header.ok()) {
      problems.Add(header.status());
      continue;
    }
    if (tensors.size() + header->size() > kMaxTensors) {
      return ResourceExhausted("{} has more than {} tensors", folder, kMaxTensors);
    }
    for (StoredTensor& tensor : *header) {
      tensor.file = static_cast<int32_t>(i);
      tensors.push_back(std::move(tensor));
    }
    mapped.back() = *std::move(file);
  }
  return {};
}

void Checkpoint::Contents::IndexNames(Problems& problems) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.name, a.file) < std::tie(b.name, b.file);
  });
  by_name.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto [at, is_new] = by_name.emplace(tensors[i].name, i);
    if (is_new) continue;
    problems.Add("{}: in {} and again in {}", Printable(tensors[i].name),
                 FileOf(tensors[at->second]), FileOf(tensors[i]));
  }
}

// Tensors that lie in another file than the index says.
void Checkpoint::Contents::CheckIndex(Problems& problems) {
  if (weight_files.index.empty()) return;
  for (const StoredTensor& tensor : tensors) {
    const auto found = weight_files.index.find(tensor.name);
    if (found == weight_files.index.end() || found->second == tensor.file) continue;
    problems.Add("{}: the index says {}, but it is in {}", Printable(tensor.name),
                 weight_files.names[static_cast<size_t>(found->second)], FileOf(tensor));
  }
}

void Checkpoint::Contents::AddMissing(const std::string& name, std::string_view shape,
                                      Problems& problems) const {
  const auto found = weight_files.index.find(name);
  if (found == weight_files.index.end()) {
    const std::string_view where =
        weight_files.index.empty() ? std::string_view(weight_files.names[0]) : "every file";
    if (mapped[0].has_value() || !weight_files.index.empty()) {
      problems.Add("{}: missing from {}; {} is expected", name, where, shape);
    }
    return;
  }
  const auto file = static_cast<size_t>(found->second);
  // Of a file that cannot be read that alone is said, not every tensor in it.
  if (!mapped[file].has_value()) return;
  problems.Add("{}: missing from {}, where the index has it; {} is expected", name,
               weight_files.names[file], shape);
}

// Whether config.json promises MTP layers of which no tensor is there.
bool Checkpoint::Contents::MissingMtp(const std::vector<SchemaEntry>& expected) const {
  return config.num_mtp_layers > 0 &&
         std::none_of(expected.begin(), expected.end(), [&](const SchemaEntry& entry) {
           return entry.layer >= config.num_layers &&
                  (by_name.contains(entry.name) || weight_files.index.contains(entry.name));
         });
}

void Checkpoint::Contents::CheckSchema(Problems& problems) {
  const std::vector<SchemaEntry> expected = ExpectedTensors(config);
  const bool missing_mtp = MissingMtp(expected);
  const bool unreadable =
      std::any_of(mapped.begin(), mapped.end(), [](const auto& file) { return !file.has_value(); });
  if (missing_mtp && !unreadable) {
    problems.Add(
        "config.json has num_nextn_predict_layers {}, but there is no tensor of layer {} "
        "on: download the files that hold them, or set num_nextn_predict_layers to 0",
        config.num_mtp_layers, config.num_layers);
  }
  for (const SchemaEntry& entry : expected) {
    if (missing_mtp && entry.layer >= config.num_layers) continue;
    if (StoredTensor* tensor = Find(entry.name)) {
      CheckPresent(entry, *tensor, problems);
    } else if (entry.rule->optional == nullptr || !entry.rule->optional(config)) {
      AddMissing(entry.name, DescribeShape(*entry.rule, config), problems);
    }
  }
  if (problems.empty()) CheckGroups(expected, problems);
}

// Matrices that are multiplied as one: gates and ups of a layer's experts, and their downs.
void Checkpoint::Contents::CheckGroups(const std::vector<SchemaEntry>& expected,
                                       Problems& problems) {
  std::map<std::pair<int32_t, bool>, const StoredTensor*> firsts;
  for (const SchemaEntry& entry : expected) {
    const StoredTensor* tensor = Find(entry.name);
    if (tensor == nullptr || !entry.rule->InMlp()) continue;
    const bool down = entry.rule->pattern.ends_with("down_proj.weight");
    const StoredTensor* first = firsts.try_emplace({entry.layer, down}, tensor).first->second;
    if (tensor->dtype == first->dtype) continue;
    problems.Add("{}: {} in {}, but {} is {} in {}: convert them to one type", entry.name,
                 Describe(*tensor), FileOf(*tensor), first->name, Describe(*first), FileOf(*first));
  }
}

void Checkpoint::Contents::CheckPresent(const SchemaEntry& entry, StoredTensor& tensor,
                                        Problems& problems) {
  const TensorRule& rule = *entry.rule;
  tensor.in_schema = true;
  total_bytes += tensor.bytes;
  if (tensor.shape != Shape(rule, config)) {
    problems.Add("{}: {} in {}, but {} is expected", entry.name, Describe(tensor), FileOf(tensor),
                 DescribeShape(rule, config));
    return;
  }
  const bool is_fp8 = tensor.dtype == DType::kF8E4M3;
  const bool is_float =
      tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32;
  if (!is_float && !(is_fp8 && rule.kind == TensorRule::kLinear)) {
    problems.Add("{}: {} in {}, but the type must be BF16, F16 or F32{}", entry.name,
                 Describe(tensor), FileOf(tensor),
                 rule.kind == TensorRule::kLinear ? ", or F8_E4M3 with scales" : "");
  } else if (is_fp8 && !config.fp8) {
    problems.Add("{}: {} in {}, but config.json has no quantization_config with quant_method fp8",
                 entry.name, Describe(tensor), FileOf(tensor));
  } else {
    CheckScales(tensor, problems);
  }
}

// An FP8 tensor needs its scales, another must have none.
void Checkpoint::Contents::CheckScales(StoredTensor& tensor, Problems& problems) {
  const std::string name = ScaleName(tensor.name);
  StoredTensor* scales = Find(name);
  if (tensor.dtype != DType::kF8E4M3) {
    if (scales == nullptr) return;
    problems.Add("{}: in {}, but {} is not FP8: {}", name, FileOf(*scales), tensor.name,
                 Describe(tensor));
    return;
  }
  const ScaleGroups& tiles = WeightFormat::kFp8.scales;
  const std::vector<int64_t> shape = {tiles.outputs.Count(tensor.shape[0]),
                                      tiles.channels.Count(tensor.shape[1])};
  const std::string expected = fmt::format("F32 [{}]", fmt::join(shape, ", "));
  if (scales == nullptr) {
    AddMissing(name, expected, problems);
    return;
  }
  scales->in_schema = true;
  total_bytes += scales->bytes;
  if (scales->dtype != DType::kF32 || scales->shape != shape) {
    problems.Add("{}: {} in {}, but {} is expected, a scale for each tile of 128 x 128", name,
                 Describe(*scales), FileOf(*scales), expected);
  }
}

void Checkpoint::Contents::WarnOfOthers() {
  const StoredTensor* first = nullptr;
  size_t others = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.in_schema) continue;
    if (others++ == 0) first = &tensor;
  }
  if (others == 0) return;
  warnings.push_back(
      fmt::format("{} tensors are not part of the model and are ignored, the first is {} in {}",
                  others, Printable(first->name), FileOf(*first)));
}

TensorView Checkpoint::Contents::View(const StoredTensor& tensor) const {
  CHECK(tensor.in_schema, "{} is not in the schema", tensor.name);
  const std::byte* data = held.Hold(tensor, BytesOf(tensor));
  const bool vector = tensor.shape.size() == 1;
  if (vector) return TensorView::ReadOnly(data, *tensor.dtype, {tensor.shape[0]});
  return TensorView::ReadOnly(data, *tensor.dtype, {tensor.shape[0], tensor.shape[1]});
}

void Checkpoint::Contents::Drop(const StoredTensor& tensor) const {
  held.Drop(tensor);
  if (!dummy) mapped[static_cast<size_t>(tensor.file)]->Drop(BytesOf(tensor), leaves_cache);
}

Result<Checkpoint> Checkpoint::Open(const std::string& path) {
  auto contents = std::make_unique<Contents>();
  contents->folder = TRY(ResolveFolder(path));
  TRY(contents->ReadConfigs());
  contents->weight_files = TRY(FindWeightFiles(contents->folder));
  Problems problems;
  TRY(contents->ReadHeaders(problems));
  contents->IndexNames(problems);
  contents->CheckIndex(problems);
  contents->CheckSchema(problems);
  if (!problems.empty()) return problems.ToStatus(contents->folder);
  contents->WarnOfOthers();
  // A smaller model may stay in the page cache, which makes the next start fast.
  contents->leaves_cache = static_cast<int64_t>(contents->total_bytes) > UsableMemoryBytes() / 2;
  return Checkpoint(std::move(contents));
}

Checkpoint Checkpoint::Dummy(const ModelConfig& config, uint64_t seed) {
  auto contents = std::make_unique<Contents>();
  contents->config = config;
  contents->dummy.emplace(config, seed);
  contents->tensors = contents->dummy->TakeTensors();
  for (size_t i = 0; i < contents->tensors.size(); ++i) {
    contents->by_name.emplace(contents->tensors[i].name, i);
    contents->total_bytes += contents->tensors[i].bytes;
  }
  return Checkpoint(std::move(contents));
}

Checkpoint::Checkpoint(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

void Checkpoint::LeaveOutMtp() {
  contents_->config.num_mtp_layers = 0;
}
const ModelConfig& Checkpoint::config() const {
  return contents_->config;
}
const GenerationConfig& Checkpoint::generation() const {
  return contents_->generation;
}
const std::string& Checkpoint::folder() const {
  return contents_->folder;
}
uint64_t Checkpoint::total_bytes() const {
  return contents_->total_bytes;
}
uint64_t Checkpoint::asked_bytes() const {
  return contents_->held.asked_bytes();
}
const std::vector<StoredTensor>& Checkpoint::tensors() const {
  return contents_->tensors;
}
const std::vector<std::string>& Checkpoint::files() const {
  return contents_->weight_files.names;
}
const std::vector<std::string>& Checkpoint::warnings() const {
  return contents_->warnings;
}

bool Checkpoint::Has(std::string_view name) const {
  return contents_->by_name.contains(name);
}

WeightTensor Checkpoint::Get(std::string_view name) const {
  const StoredTensor& tensor = contents_->At(name);
  const TensorView values = contents_->View(tensor);
  if (tensor.dtype != DType::kF8E4M3) return StoredWeight(values);
  return StoredWeight(values, contents_->View(contents_->At(ScaleName(name))));
}

uint64_t Checkpoint::Bytes(std::string_view name) const {
  const StoredTensor& tensor = contents_->At(name);
  const bool fp8 = tensor.dtype == DType::kF8E4M3;
  return tensor.bytes + (fp8 ? contents_->At(ScaleName(name)).bytes : uint64_t{0});
}

void Checkpoint::Drop(std::string_view name) const {
  const StoredTensor& tensor = contents_->At(name);
  contents_->Drop(tensor);
  if (tensor.dtype == DType::kF8E4M3) contents_->Drop(contents_->At(ScaleName(name)));
}

}  // namespace fathom
