// A checkpoint folder, validated as a whole and memory-mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"
#include "quant/weight_tensor.h"

namespace fathom {

// THREAD: reading from several is fine.
class Checkpoint {
 public:
  // `path`: a folder with config.json and safetensors, or what else ResolveFolder takes. Maps the
  // files and reads their headers; no weight is read. Every problem of the folder is listed in one
  // error: tensors that are missing, mis-shaped, mis-typed or out of bounds, by name and file.
  static Result<Checkpoint> Open(const std::string& path);
  // Random weights of the same shapes, for measuring; the same for the same seed. Needs no file and
  // has no folder.
  static Checkpoint Dummy(const ModelConfig& config, uint64_t seed);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const ModelConfig& config() const;
  const GenerationConfig& generation() const;
  const std::string& folder() const;  // where the files are (the snapshot, for a cache folder)

  bool Has(std::string_view name) const;
  // "model.layers.0.self_attn.q_a_proj.weight", with its `weight_scale_inv` if it is FP8.
  // REQUIRES: the schema requires the name, or Has(name).
  WeightTensor Get(std::string_view name) const;
  // Bytes of a tensor and its scales, for progress. REQUIRES: as Get.
  uint64_t Bytes(std::string_view name) const;
  // Says that nobody needs the tensor and its scales again: their pages may leave memory, and of a
  // model larger than half of it the page cache too. Views of them are invalid afterwards.
  void Drop(std::string_view name) const;
  // What Get has brought: a tensor counts once, and again each time that it was dropped meanwhile.
  uint64_t asked_bytes() const;
  // From now on config() has no MTP layers: nobody will read them. total_bytes() has theirs still.
  void LeaveOutMtp();

  uint64_t total_bytes() const;                      // of the tensors in the schema
  const std::vector<StoredTensor>& tensors() const;  // sorted by name; file: index of files()
  const std::vector<std::string>& files() const;     // file names in the folder
  // Harmless oddities, one sentence each: tensors that the model ignores.
  const std::vector<std::string>& warnings() const;

 private:
  struct Contents;
  explicit Checkpoint(std::unique_ptr<Contents> contents);
  std::unique_ptr<Contents> contents_;
};

}  // namespace fathom
