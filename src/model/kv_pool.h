// The latent KV pool: [layer, MTP layers included][page][plane].
#pragma once

#include <memory>

#include "checkpoint/model_config.h"
#include "ops/kv_format.h"
#include "tensor/device.h"

namespace fathom {

// The format of a model's pages with latents of `dtype`: F32, BF16, or F8_E4M3 beside rotated keys
// in BF16.
inline KvFormat MakeKvFormat(const ModelConfig& config, DType dtype) {
  return LatentKvFormat(dtype, config.kv_lora_rank, config.qk_rope_head_dim);
}

class KvPool {
 public:
  KvPool(const KvFormat& format, int64_t layers, int64_t pages, Device& device)
      : format_(format),
        pages_(pages),
        memory_(device.Allocate(static_cast<size_t>(layers * pages * format.page_bytes()))) {}

  // REQUIRES: 0 <= layer < layers.
  KvPages Layer(int64_t layer) const {
    return PagesAt(format_, memory_->data() + layer * pages_ * format_.page_bytes(), pages_);
  }
  int64_t pages() const { return pages_; }

 private:
  KvFormat format_;
  int64_t pages_;
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace fathom
