// Embedding on CUDA.
//   formula:       out[t] = table[ids[t]]
//   data mapping:  a block per token
//   bytes, FLOPs:  reads and writes tokens x hidden numbers once; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us) for up to 128 tokens of 7168; not measured
#include "ops/cuda_kernels.cuh"

namespace fathom {
namespace kernels {

template <class T>
__global__ void Embed(const int32_t* ids, Rows<const T> table, int64_t vocab, int64_t hidden,
                      const int32_t* live, Rows<BF16> out) {
  const int64_t t = blockIdx.x;
  if (t >= *live) return;
  const int32_t id = ids[t];
  DEVICE_CHECK(id >= 0 && id < vocab, "embed: token", id);
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    Store(out[t] + i, Load(table[id] + i));
  }
}

template <class T>
void LaunchEmbed(cudaStream_t stream, const EmbedArgs& a) {
  Embed<T><<<static_cast<unsigned>(a.ids.dim(0)), 256, 0, stream>>>(
      Data<int32_t>(a.ids), RowsOf<const T>(a.table), a.table.dim(0), a.out.dim(1),
      Data<int32_t>(a.live), RowsOf<BF16>(a.out));
}

}  // namespace kernels

void EmbedCuda(OpContext& context, const EmbedArgs& a) {
  if (a.ids.dim(0) == 0) return;
  const cudaStream_t stream = Cuda(context).get();
  switch (a.table.dtype()) {
    case DType::kF32: kernels::LaunchEmbed<float>(stream, a); break;
    case DType::kF16: kernels::LaunchEmbed<F16>(stream, a); break;
    default: kernels::LaunchEmbed<BF16>(stream, a); break;
  }
  Cuda(context).CheckLaunch("embed", a.out);
}

}  // namespace fathom
