// Packs weights for the CPU table: panels of outputs, in the type they are stored in or quantised.
//   formula:       values[m][p][k][lane] = w[m][out(p) + lane][k] (cpu_weight.h), or its integer
//   data mapping:  a thread takes a panel of one matrix; pieces of 64 channels stay in L1
//   bytes, FLOPs:  reads each weight once, writes it once; some 60 operations a weight of kInt4
//   accumulator:   none
//   expected time: not measured
#include "products/cpu/pack_weight.h"

#include <cmath>
#include <mutex>

#include "products/cpu/cpu_weight.h"
#include "products/cpu/panel_dot.h"
#include "products/cpu/quantize_panel.h"
#include "products/stored_format.h"

namespace fathom {
namespace {

// A panel's place in its part.
struct PanelSource {
  size_t part = 0;
  int64_t output = 0;
};

// Where channel k of a run and an output lie among the numbers of the run (cpu_weight.h).
struct InChannels {
  static int64_t At(int64_t k, int64_t lane) { return k * kPanel + lane; }
};
struct InPairs {
  static int64_t At(int64_t k, int64_t lane) { return (k / 2 * kPanel + lane) * 2 + k % 2; }
};
struct InPairsOfFour {
  static int64_t At(int64_t k, int64_t lane) {
    return k / 4 * 4 * kPanel + lane / 4 * 16 + k / 2 % 2 * 8 + lane % 4 * 2 + k % 2;
  }
};

// A run of a panel: outputs [output, output + width) of a part, channels [begin, end).
struct PanelRun {
  const WeightTensor& part;
  int64_t output, width, begin, end;

  // to[Place::At(k - begin, lane)] = convert(element (output + lane, k), lane), in pieces that keep
  // both sides in L1.
  template <class From, class Place, class To, class Convert>
  void Pack(To* to, const Convert& convert) const {
    constexpr int64_t kPiece = 64;
    const TensorView& values = part.values;
    const int64_t output_stride = values.stride(0), channel_stride = values.stride(1),
                  k_begin = begin;
    const From* from = static_cast<const From*>(values.data()) + output * output_stride;
    for (int64_t k0 = k_begin; k0 < end; k0 += kPiece) {
      const int64_t k1 = std::min(end, k0 + kPiece);
      for (int64_t lane = 0; lane < width; ++lane) {
        const From* line = from + lane * output_stride;
        for (int64_t k = k0; k < k1; ++k) {
          to[Place::At(k - k_begin, lane)] = convert(line[k * channel_stride], lane);
        }
      }
    }
  }

  // As they are stored.
  template <class T, class Place>
  void Copy(std::byte* to) const {
    Pack<T, Place>(reinterpret_cast<T*>(to), [](T x, int64_t) { return x; });
  }

  // Of any type, to fp32 [channels, kPanel].
  void Decode(float* to) const {
    const auto decode = [&]<class T>(T) {
      Pack<T, InChannels>(to, [](T x, int64_t) { return ToFloat(x); });
    };
    switch (part.values.dtype()) {
      case DType::kF32: return Pack<float, InChannels>(to, [](float x, int64_t) { return x; });
      case DType::kF16: return decode(F16());
      case DType::kBF16: return decode(BF16());
      default: break;
    }
    const ScaleGroups& groups = part.format.scales;
    for (int64_t k = begin; k < end;) {
      // Channels of one group of scales.
      const int64_t group = groups.channels.Of(k), stop = groups.channels.End(group, end);
      float scales[kPanel];
      for (int64_t lane = 0; lane < width; ++lane) {
        scales[lane] = LoadFloat(part.scales, groups.outputs.Of(output + lane), group);
      }
      const PanelRun within_group = {part, output, width, k, stop};
      within_group.Pack<E4M3, InChannels>(to + (k - begin) * kPanel, [&](E4M3 x, int64_t lane) {
        return ToFloat(x) * scales[lane];
      });
      k = stop;
    }
  }
};

class Packer {
 public:
  Packer(const PackArgs& args, CpuWeight& weight) : args_(args), w_(weight) {}

  void Run(ThreadPool& pool) {
    LayOut();
    const int64_t panels = w_.count * w_.panel_count();
    w_.values = Buffer(static_cast<size_t>(panels * w_.panel_bytes()));
    pool.ParallelFor(panels, Grain(w_.panel_bytes()), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) PackPanel(i / w_.panel_count(), i % w_.panel_count());
    });
    if (w_.format.values == WeightType::kE4M3) PackScales();
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
      const int64_t outputs = parts[i].values.dim(0);
      for (int64_t output = 0; output < outputs; output += kPanel) {
        w_.panels.push_back({w_.out + output, std::min(kPanel, outputs - output)});
        sources_.push_back({i, output});
      }
      w_.out += outputs;
    }
  }

  void PackPanel(int64_t m, int64_t p) {
    for (int64_t r = 0; r < w_.runs(); ++r) {
      const PanelRun run = {Part(m, p), At(p).output, Width(p), w_.run_begin(r), w_.run_end(r)};
      auto* to = const_cast<std::byte*>(w_.Codes(m, p, r));
      switch (w_.format.values) {
        case WeightType::kF32: run.Decode(reinterpret_cast<float*>(to)); break;
        case WeightType::kF16: run.Copy<F16, InChannels>(to); break;
        case WeightType::kBF16:
          w_.dots ? run.Copy<BF16, InPairs>(to) : run.Copy<BF16, InChannels>(to);
          break;
        case WeightType::kE4M3:
          w_.dots ? PackCodes<InPairsOfFour>(run, m, p, r, to)
                  : PackCodes<InChannels>(run, m, p, r, to);
          break;
        case WeightType::kInt8:
        case WeightType::kInt4: PackIntegers(run, Scales(m, p, r), to); break;
      }
    }
  }

  // E4M3, without NaN codes.
  template <class Place>
  void PackCodes(const PanelRun& run, int64_t m, int64_t p, int64_t r, std::byte* to) {
    run.Pack<uint8_t, Place>(reinterpret_cast<uint8_t*>(to), [&](uint8_t code, int64_t lane) {
      if ((code & 0x7f) != 0x7f) return code;
      AddNan({m, p, r, lane});
      return uint8_t{0};
    });
  }

  void PackIntegers(const PanelRun& run, float* scales, std::byte* to) const {
    alignas(64) float values[kScaleTile * kPanel] = {};
    run.Decode(values);
    const int64_t n = run.end - run.begin;
    if (w_.format.values == WeightType::kInt8) {
      QuantizePanelInt8(values, n, reinterpret_cast<uint8_t*>(to), scales);
    } else {
      QuantizePanelInt4(values, n, reinterpret_cast<uint8_t*>(to), scales);
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
    const float unit = w_.dots ? 0x1p-8f : 0x1p8f;
    for (int64_t m = 0; m < w_.count; ++m) {
      for (int64_t p = 0; p < w_.panel_count(); ++p) {
        for (int64_t run = 0; run < w_.runs(); ++run) {
          for (int64_t lane = 0; lane < std::min(stride, Width(p)); ++lane) {
            Scales(m, p, run)[lane] = LoadFloat(Part(m, p).scales, Tile(m, p, lane), run) * unit;
          }
        }
      }
    }
    for (const Nan& nan : nans_) {
      Scales(nan.matrix, nan.panel, nan.run)[nan.lane] = NAN;
    }
  }

  int64_t Tile(int64_t m, int64_t p, int64_t lane) const {
    return Part(m, p).format.scales.outputs.Of(At(p).output + lane);
  }
  float* Scales(int64_t m, int64_t p, int64_t run) {
    return const_cast<float*>(w_.Scales(m, p, run));
  }

  const PackArgs& args_;
  CpuWeight& w_;
  std::vector<PanelSource> sources_;  // of each panel
  std::mutex mutex_;
  std::vector<Nan> nans_;  // guarded by mutex_ while panels are packed
};

// What products with packed weights of this format take for activations.
void ChooseActivations(bool round, CpuWeight& w) {
  w.dots = FindDotKernels(w.format.values, /*split=*/!w.quantize_activations && !round);
  if (w.integer()) {
    w.activations = ActivationForm::kInt8;
  } else if (w.quantize_activations) {
    w.activations = ActivationForm::kE4M3;
  } else if (w.dots != nullptr) {
    w.activations = round ? ActivationForm::kBF16 : ActivationForm::kSplit;
  }
}

}  // namespace

Result<std::unique_ptr<PackedWeight>> PackForCpu(ThreadPool& pool, const PackArgs& a,
                                                 const CpuPacking& wanted) {
  Check(a);
  TRY(RefuseUnknownFormats(a));
  auto w = std::make_unique<CpuWeight>();
  w->count = static_cast<int64_t>(a.matrices.size());
  w->in = a.matrices[0].parts[0].values.dim(1);
  if (wanted.quantize_to && !a.exact_activations) {
    w->format = *wanted.quantize_to;
    w->scale_per_output = true;
  } else {
    const bool quantize_activations = wanted.quantize_activations && !a.exact_activations;
    w->format = TRY(CommonFormat(a, quantize_activations));
    w->quantize_activations = quantize_activations && w->format.values == WeightType::kE4M3;
    w->scale_ue8m0 = a.scale_ue8m0;
  }
  ChooseActivations(wanted.round_activations, *w);
  Packer(a, *w).Run(pool);
  return std::unique_ptr<PackedWeight>(std::move(w));
}

}  // namespace fathom
