// Packs weights for the CPU table: panels of outputs, in the type they are stored in.
//   formula:       values[m][p][k][lane] = w[m][out(p) + lane][k]; scales beside them, times 2^8
//   data mapping:  a thread takes a panel of one matrix; blocks of 64 channels stay in L1
//   bytes, FLOPs:  reads each weight once, writes it once; no arithmetic
//   accumulator:   none
//   expected time: one pass over memory by scalar moves; not measured
#include <cmath>
#include <mutex>

#include "ops/cpu_ops.h"
#include "ops/prepare/cpu_weight.h"

namespace fathom {
namespace {

bool IsFp8(const WeightTensor& part) {
  return part.values.dtype() == DType::kF8E4M3;
}

WeightFormat StoredFormat(const WeightTensor& part) {
  switch (part.values.dtype()) {
    case DType::kF32: return WeightFormat::kF32;
    case DType::kF16: return WeightFormat::kF16;
    case DType::kBF16: return WeightFormat::kBF16;
    case DType::kF8E4M3: return WeightFormat::kFp8;
    default: CHECK(false, "prepare: weights of {}", part.values.ToString());
  }
}

// The format that all parts are stored in. Parts of several types, or FP8 parts whose scale tiles
// do not line up, become fp32; with quantised activations they are refused.
Result<WeightFormat> Format(const PrepareArgs& a, bool quantize_activations) {
  const WeightTensor& first = a.matrices[0].parts[0];
  bool alike = true;
  for (const WeightSource& source : a.matrices) {
    for (const WeightTensor& part : source.parts) {
      if (quantize_activations && IsFp8(part) != IsFp8(first)) {
        return Unimplemented("a matrix with parts in both {} and {}; convert them to one type",
                             Name(first.values.dtype()), Name(part.values.dtype()));
      }
      const bool lined_up = !IsFp8(part) || part.col_offset == first.col_offset;
      if (quantize_activations && !lined_up) {
        return Unimplemented("FP8 parts whose columns begin at {} and at {} of a scale tile",
                             first.col_offset, part.col_offset);
      }
      alike &= part.values.dtype() == first.values.dtype() && lined_up;
    }
  }
  return alike ? StoredFormat(first) : WeightFormat::kF32;
}

// A panel's place in its part.
struct PanelSource {
  size_t part = 0;
  int64_t row = 0;
};

// to[k][lane] = convert(element (row + lane, k), lane), in blocks that keep both sides in L1.
template <class From, class To, class Convert>
void PackColumns(const TensorView& values, int64_t row, int64_t width, int64_t begin, int64_t end,
                 To* to, const Convert& convert) {
  constexpr int64_t kBlock = 64;
  const From* from = static_cast<const From*>(values.data()) + row * values.stride(0);
  const int64_t row_stride = values.stride(0), col_stride = values.stride(1);
  for (int64_t k0 = begin; k0 < end; k0 += kBlock) {
    const int64_t k1 = std::min(end, k0 + kBlock);
    for (int64_t lane = 0; lane < width; ++lane) {
      const From* line = from + lane * row_stride;
      for (int64_t k = k0; k < k1; ++k) {
        to[k * kPanel + lane] = convert(line[k * col_stride], lane);
      }
    }
  }
}

// As they are stored.
template <class T>
void PackAsStored(const WeightTensor& part, int64_t row, int64_t width, std::byte* to) {
  PackColumns<T>(part.values, row, width, 0, part.values.dim(1), reinterpret_cast<T*>(to),
                 [](T x, int64_t) { return x; });
}

// Of any type, to fp32.
void PackAsFloats(const WeightTensor& part, int64_t row, int64_t width, std::byte* to) {
  float* floats = reinterpret_cast<float*>(to);
  for (int64_t lane = 0; lane < width; ++lane) {
    for (int64_t k = 0; k < part.values.dim(1); ++k) {
      floats[k * kPanel + lane] = Dequantize(part, row + lane, k);
    }
  }
}

class Packer {
 public:
  Packer(const PrepareArgs& args, CpuWeight& weight) : args_(args), w_(weight) {}

  void Run(ThreadPool& pool) {
    LayOut();
    w_.values = Buffer(static_cast<size_t>(w_.count * w_.panel_count() * w_.panel_bytes()));
    const int64_t panels = w_.count * w_.panel_count();
    pool.ParallelFor(panels, Grain(w_.panel_bytes()), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) PackPanel(i / w_.panel_count(), i % w_.panel_count());
    });
    if (w_.format == WeightFormat::kFp8) PackScales();
    w_.bytes = w_.values.size() + w_.scales.size();
  }

 private:
  struct Nan {
    int64_t matrix, panel, run, lane;
  };

  const WeightTensor& Part(int64_t matrix, int64_t panel) const {
    return args_.matrices[static_cast<size_t>(matrix)].parts[At(panel).part];
  }
  const PanelSource& At(int64_t panel) const { return sources_[static_cast<size_t>(panel)]; }
  int64_t Width(int64_t panel) const { return w_.panels[static_cast<size_t>(panel)].width; }

  void LayOut() {
    const std::vector<WeightTensor>& parts = args_.matrices[0].parts;
    w_.out = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t rows = parts[i].values.dim(0);
      for (int64_t row = 0; row < rows; row += kPanel) {
        w_.panels.push_back({w_.out + row, std::min(kPanel, rows - row)});
        sources_.push_back({i, row});
      }
      w_.out += rows;
    }
  }

  void PackPanel(int64_t m, int64_t p) {
    std::byte* to = w_.values.data() + (m * w_.panel_count() + p) * w_.panel_bytes();
    const WeightTensor& part = Part(m, p);
    const int64_t row = At(p).row, width = Width(p);
    switch (w_.format) {
      case WeightFormat::kF32: return PackAsFloats(part, row, width, to);
      case WeightFormat::kF16: return PackAsStored<F16>(part, row, width, to);
      case WeightFormat::kBF16: return PackAsStored<BF16>(part, row, width, to);
      case WeightFormat::kFp8: break;
    }
    for (int64_t run = 0; run < w_.runs(); ++run) {
      PackColumns<uint8_t>(part.values, At(p).row, Width(p), w_.run_begin(run), w_.run_end(run),
                           reinterpret_cast<uint8_t*>(to), [&](uint8_t code, int64_t lane) {
                             if ((code & 0x7f) != 0x7f) return code;
                             AddNan({m, p, run, lane});
                             return uint8_t{0};
                           });
    }
  }

  void AddNan(const Nan& nan) {
    const std::lock_guard<std::mutex> lock(mutex_);
    nans_.push_back(nan);
  }

  void PackScales() {
    w_.scale_per_output = !nans_.empty();
    for (int64_t m = 0; m < w_.count; ++m) {
      for (int64_t p = 0; p < w_.panel_count(); ++p) {
        if (Tile(m, p, 0) != Tile(m, p, Width(p) - 1)) w_.scale_per_output = true;
      }
    }
    const int64_t stride = w_.scale_stride();
    w_.scales = Buffer(static_cast<size_t>(w_.count * w_.panel_count() * w_.runs() * stride) *
                       sizeof(float));
    for (int64_t m = 0; m < w_.count; ++m) {
      for (int64_t p = 0; p < w_.panel_count(); ++p) {
        float* to = Scales(m, p);
        for (int64_t run = 0; run < w_.runs(); ++run) {
          for (int64_t lane = 0; lane < std::min(stride, Width(p)); ++lane) {
            to[run * stride + lane] = LoadFloat(Part(m, p).scales, Tile(m, p, lane), run) * 0x1p8f;
          }
        }
      }
    }
    for (const Nan& nan : nans_) {
      Scales(nan.matrix, nan.panel)[nan.run * stride + nan.lane] = NAN;
    }
  }

  int64_t Tile(int64_t m, int64_t p, int64_t lane) const {
    return (Part(m, p).row_offset + At(p).row + lane) / kScaleTile;
  }
  float* Scales(int64_t m, int64_t p) { return const_cast<float*>(w_.panel_scales(m, p)); }

  const PrepareArgs& args_;
  CpuWeight& w_;
  std::vector<PanelSource> sources_;  // of each panel
  std::mutex mutex_;
  std::vector<Nan> nans_;  // guarded by mutex_ while panels are packed
};

Result<std::unique_ptr<PackedWeight>> Prepare(Stream& stream, const PrepareArgs& a,
                                              bool quantize_activations) {
  Check(a);
  auto w = std::make_unique<CpuWeight>();
  w->format = TRY(Format(a, quantize_activations));
  w->quantize_activations = quantize_activations && w->format == WeightFormat::kFp8;
  w->scale_ue8m0 = a.scale_ue8m0;
  w->count = static_cast<int64_t>(a.matrices.size());
  w->in = a.matrices[0].parts[0].values.dim(1);
  if (w->format == WeightFormat::kFp8) {
    w->first_run = std::min<int64_t>(w->in, kScaleTile - a.matrices[0].parts[0].col_offset);
  }
  Packer(a, *w).Run(static_cast<CpuStream&>(stream).pool());
  return std::unique_ptr<PackedWeight>(std::move(w));
}

}  // namespace

Result<std::unique_ptr<PackedWeight>> PrepareCpuExact(Stream& stream, const PrepareArgs& a) {
  return Prepare(stream, a, false);
}

Result<std::unique_ptr<PackedWeight>> PrepareCpuQuantized(Stream& stream, const PrepareArgs& a) {
  return Prepare(stream, a, !a.exact_activations);
}

}  // namespace fathom
