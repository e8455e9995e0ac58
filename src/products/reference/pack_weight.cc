// Packs weights for the reference table: transposed, FP8 either dequantised or as values of codes.
#include "products/reference/pack_weight.h"

#include "products/reference/reference_weight.h"
#include "products/stored_format.h"

namespace fathom {
namespace {

int64_t Outputs(const WeightSource& source) {
  int64_t outputs = 0;
  for (const WeightTensor& part : source.parts) outputs += part.values.dim(0);
  return outputs;
}

float CodeValue(const WeightTensor& w, int64_t output, int64_t channel) {
  return ToFloat(w.values.As<E4M3>()[output * w.values.stride(0) + channel * w.values.stride(1)]);
}

void PackFp32(const WeightTensor& part, int64_t out, float* to) {
  for (int64_t output = 0; output < part.values.dim(0); ++output) {
    for (int64_t channel = 0; channel < part.values.dim(1); ++channel) {
      to[channel * out + output] = Dequantize(part, output, channel);
    }
  }
}

void PackFp8(const WeightTensor& part, const ReferenceWeight& shape, float* to, float* scales) {
  for (int64_t output = 0; output < part.values.dim(0); ++output) {
    for (int64_t channel = 0; channel < part.values.dim(1); ++channel) {
      to[channel * shape.out + output] = CodeValue(part, output, channel);
    }
    for (int64_t run = 0; run < shape.runs(); ++run) {
      scales[run * shape.out + output] =
          LoadFloat(part.scales, part.format.scales.outputs.Of(output), run);
    }
  }
}

// fp32 unless the activations are to be quantised.
Result<WeightFormat> Format(const PackArgs& a, bool quantize_activations) {
  const bool quantize = quantize_activations && !a.exact_activations;
  const WeightFormat stored = TRY(CommonFormat(a, quantize));
  return quantize && stored.values == WeightType::kE4M3 ? stored : WeightFormat::kF32;
}

}  // namespace

Result<std::unique_ptr<PackedWeight>> PackForReference(const PackArgs& a,
                                                       bool quantize_activations) {
  Check(a);
  TRY(RefuseUnknownFormats(a));
  auto w = std::make_unique<ReferenceWeight>();
  w->format = TRY(Format(a, quantize_activations));
  w->quantize_activations = w->format.values == WeightType::kE4M3;
  w->scale_ue8m0 = a.scale_ue8m0;
  w->count = static_cast<int64_t>(a.matrices.size());
  w->out = Outputs(a.matrices[0]);
  w->in = a.matrices[0].parts[0].values.dim(1);
  w->values.resize(w->count * w->in * w->out);
  if (w->quantize_activations) w->scales.resize(w->count * w->runs() * w->out);
  for (int64_t m = 0; m < w->count; ++m) {
    int64_t output = 0;
    for (const WeightTensor& part : a.matrices[m].parts) {
      float* to = w->values.data() + m * w->in * w->out + output;
      if (w->quantize_activations) {
        PackFp8(part, *w, to, w->scales.data() + m * w->runs() * w->out + output);
      } else {
        PackFp32(part, w->out, to);
      }
      output += part.values.dim(0);
    }
  }
  w->bytes = (w->values.size() + w->scales.size()) * sizeof(float);
  return std::unique_ptr<PackedWeight>(std::move(w));
}

}  // namespace fathom
