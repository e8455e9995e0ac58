// Embedding on CUDA.
//   formula:       out[t] = table[ids[t] - first], or 0 where the table does not have the id
//   data mapping:  a block per token
//   bytes, FLOPs:  reads and writes tokens x hidden numbers once; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us) for up to 128 tokens of 7168; not measured
#include <algorithm>

#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

// The ids that a table has, of so many.
struct IdRange {
  int64_t begin, end, vocab;
};

template <class T, class Y>
__global__ void Embed(const int32_t* ids, Slices<const T> table, IdRange in, int64_t hidden,
                      const int32_t* live, Slices<Y> out) {
  AfterPriorKernels();
  const int64_t t = blockIdx.x;
  if (t >= *live) return;
  const int32_t id = ids[t];
  DEVICE_CHECK(id >= 0 && id < in.vocab, "embed: token", id);
  const bool here = id >= in.begin && id < in.end;
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    Store(out[t] + i, here ? Load(table[id - in.begin] + i) : 0.0f);
  }
}

template <class T, class Y>
void LaunchEmbed(cudaStream_t stream, const EmbedArgs& a) {
  LaunchOverlapped(Embed<T, Y>, static_cast<unsigned>(a.ids.dim(0)), 256, 0, stream,
                   Data<int32_t>(a.ids), SlicesOf<const T>(a.table),
                   IdRange{a.first, a.first + a.table.dim(0), std::max(a.vocab, a.table.dim(0))},
                   a.out.dim(1), Data<int32_t>(a.live), SlicesOf<Y>(a.out));
}

template <class Y>
void LaunchEmbedTo(cudaStream_t stream, const EmbedArgs& a) {
  switch (a.table.dtype()) {
    case DType::kF32: return LaunchEmbed<float, Y>(stream, a);
    case DType::kF16: return LaunchEmbed<F16, Y>(stream, a);
    default: return LaunchEmbed<BF16, Y>(stream, a);
  }
}

}  // namespace kernels

void EmbedCuda(OpContext& context, const EmbedArgs& a) {
  if (a.ids.dim(0) == 0) return;
  const cudaStream_t stream = Cuda(context).get();
  const bool f32 = a.out.dtype() == DType::kF32;
  (f32 ? kernels::LaunchEmbedTo<float> : kernels::LaunchEmbedTo<BF16>)(stream, a);
  Cuda(context).CheckLaunch("embed", a.out);
}

}  // namespace fathom
