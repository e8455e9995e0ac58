// Packs weights for the CUDA table: output by output, as they are stored. The copies go through
// pinned staging while the next outputs are read.
#include "products/cuda/pack_weight.h"

#include <vector>

#include "products/cuda/cuda_weight.h"
#include "products/stored_format.h"

namespace fathom {
namespace {

size_t ElementBytes(const WeightFormat& format) {
  CHECK(format.values != WeightType::kInt8 && format.values != WeightType::kInt4,
        "pack: {} weights, which CUDA does not have", Name(format.values));
  return static_cast<size_t>(BitsOf(format.values)) / 8;
}

// Outputs of all parts of all matrices, one after another.
class Packer {
 public:
  Packer(CudaDevice& device, const PackArgs& args, CudaWeight& weight)
      : device_(device), args_(args), w_(weight) {}

  void Run() {
    const size_t output_bytes = static_cast<size_t>(w_.in) * ElementBytes(w_.format);
    w_.values = device_.Allocate(static_cast<size_t>(w_.count * w_.out) * output_bytes);
    std::byte* to = w_.values->data();
    for (const WeightSource& source : args_.matrices) {
      for (const WeightTensor& part : source.parts) {
        PackPart(part, output_bytes, to);
        to += static_cast<size_t>(part.values.dim(0)) * output_bytes;
      }
    }
    w_.bytes = w_.values->size();
    if (w_.format.scales.type == ScaleType::kNone) return;
    PackScales();
    w_.bytes += w_.scales->size();
  }

 private:
  bool AsStored(const WeightTensor& part) const { return part.format.values == w_.format.values; }

  void Convert(const WeightTensor& part, int64_t output, std::byte* to) const {
    for (int64_t k = 0; k < w_.in; ++k) {
      const float x = Dequantize(part, output, k);
      if (w_.format.values == WeightType::kBF16) {
        reinterpret_cast<BF16*>(to)[k] = ToBF16(x);
      } else {
        reinterpret_cast<float*>(to)[k] = x;
      }
    }
  }

  void PackPart(const WeightTensor& part, size_t output_bytes, std::byte* to) {
    const TensorView& values = part.values;
    const int64_t outputs = values.dim(0);
    if (AsStored(part) && values.contiguous()) {
      device_.UploadBytes(to, {static_cast<const std::byte*>(values.data()),
                               static_cast<size_t>(outputs) * output_bytes});
      return;
    }
    const int64_t at_once = std::max<int64_t>(1, static_cast<int64_t>((1 << 20) / output_bytes));
    for (int64_t output = 0; output < outputs; output += at_once) {
      const int64_t count = std::min(at_once, outputs - output);
      buffer_.resize(static_cast<size_t>(count) * output_bytes);
      for (int64_t i = 0; i < count; ++i) {
        PackOutput(part, output + i, buffer_.data() + static_cast<size_t>(i) * output_bytes);
      }
      device_.UploadBytes(to + static_cast<size_t>(output) * output_bytes, buffer_);
    }
  }

  void PackOutput(const WeightTensor& part, int64_t output, std::byte* to) {
    if (!AsStored(part)) return Convert(part, output, to);
    switch (ByteSize(part.values.dtype())) {
      case 1: return CopyOutput<uint8_t>(part.values, output, to);
      case 2: return CopyOutput<uint16_t>(part.values, output, to);
      default: return CopyOutput<uint32_t>(part.values, output, to);
    }
  }

  template <class T>
  void CopyOutput(const TensorView& values, int64_t output, std::byte* to) {
    const T* from = static_cast<const T*>(values.data()) + output * values.stride(0);
    const int64_t stride = values.stride(1);
    T* out = reinterpret_cast<T*>(to);
    for (int64_t k = 0; k < w_.in; ++k) out[k] = from[k * stride];
  }

  void PackScales() {
    const std::vector<WeightTensor>& first = args_.matrices[0].parts;
    w_.parts = static_cast<int64_t>(first.size());
    w_.part_out = first[0].values.dim(0);
    int64_t& tile_outputs = w_.format.scales.outputs.size;
    bool whole = true;  // all parts end with a scale tile, but for the last
    for (const WeightSource& source : args_.matrices) {
      for (const WeightTensor& part : source.parts) {
        if (part.format.scales.outputs.offset != 0) tile_outputs = 1;
        if (part.values.dim(0) != w_.part_out) w_.parts = 1;
        whole &= &part == &source.parts.back() || part.values.dim(0) % kScaleTile == 0;
      }
    }
    if (w_.parts == 1) {
      w_.part_out = w_.out;
      if (!whole) tile_outputs = 1;
    }
    w_.part_scale_groups = w_.format.scales.outputs.Count(w_.part_out);
    std::vector<float> scales;
    scales.reserve(static_cast<size_t>(w_.count * w_.parts * w_.part_scale_groups * w_.runs()));
    for (const WeightSource& source : args_.matrices) {
      for (const WeightTensor& part : source.parts) {
        for (int64_t output = 0; output < part.values.dim(0); output += tile_outputs) {
          for (int64_t run = 0; run < w_.runs(); ++run) {
            scales.push_back(LoadFloat(part.scales, part.format.scales.outputs.Of(output), run));
          }
        }
      }
    }
    w_.scales = device_.Allocate(scales.size() * sizeof(float));
    device_.UploadBytes(w_.scales->data(), std::as_bytes(std::span(scales)));
  }

  CudaDevice& device_;
  const PackArgs& args_;
  CudaWeight& w_;
  std::vector<std::byte> buffer_;
};

}  // namespace

Result<std::unique_ptr<PackedWeight>> PackForCuda(CudaDevice& device, const PackArgs& a,
                                                  bool quantize_activations) {
  Check(a);
  TRY(RefuseUnknownFormats(a));
  quantize_activations &= !a.exact_activations;
  auto w = std::make_unique<CudaWeight>();
  w->format = TRY(CommonFormat(a, quantize_activations));
  // Absorbed W_UK and W_UV meet activations as they are: tensor cores multiply BF16 with BF16.
  if (a.exact_activations && w->format.values == WeightType::kE4M3) {
    w->format = WeightFormat::kBF16;
  }
  w->quantize_activations = quantize_activations && w->format.values == WeightType::kE4M3;
  w->scale_ue8m0 = a.scale_ue8m0;
  w->count = static_cast<int64_t>(a.matrices.size());
  for (const WeightTensor& part : a.matrices[0].parts) w->out += part.values.dim(0);
  w->in = a.matrices[0].parts[0].values.dim(1);
  Packer(device, a, *w).Run();
  return std::unique_ptr<PackedWeight>(std::move(w));
}

}  // namespace fathom
