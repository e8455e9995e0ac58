#include "bench/cublaslt_product.h"

#include <cublasLt.h>

#include <cstdio>
#include <cstdlib>

namespace fathom::bench {
namespace {

void Require(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "cuBLASLt: %s: %s\n", what, cublasLtGetStatusString(status));
  std::exit(1);
}

constexpr int kMostAlgorithms = 3;
constexpr size_t kWorkspace = size_t{64} << 20;

}  // namespace

struct LibraryProduct::State {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t found[kMostAlgorithms];
  int count = 0;
  void* workspace = nullptr;
  bool scaled = false;
};

// The state's type is private, hence a template.
template <class State>
void SetScales(const State& s, const void* w_scales, const void* x_scales) {
  Require(cublasLtMatmulDescSetAttribute(s.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w_scales,
                                         sizeof(w_scales)),
          "scales of W");
  Require(cublasLtMatmulDescSetAttribute(s.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x_scales,
                                         sizeof(x_scales)),
          "scales of x");
}

// In the library's column-major terms: out^T [n, m] = (W^T)^T [n, k] x^T [k, m].
LibraryProduct::LibraryProduct(LibraryFormat format, int64_t m, int64_t n, int64_t k)
    : state_(new State) {
  State& s = *state_;
  s.scaled = format != LibraryFormat::kBf16;
  const cudaDataType_t type = s.scaled ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  Require(cublasLtCreate(&s.handle), "handle");
  Require(cublasLtMatmulDescCreate(&s.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
  const cublasOperation_t transpose = CUBLAS_OP_T;
  Require(cublasLtMatmulDescSetAttribute(s.product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                         sizeof(transpose)),
          "transpose");
  if (format == LibraryFormat::kFp8Blocks) {
    const cublasLtMatmulMatrixScale_t tiles = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                                      runs = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    Require(cublasLtMatmulDescSetAttribute(s.product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &tiles,
                                           sizeof(tiles)),
            "scale mode of W");
    Require(cublasLtMatmulDescSetAttribute(s.product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &runs,
                                           sizeof(runs)),
            "scale mode of x");
  }
  Require(cublasLtMatrixLayoutCreate(&s.w, type, k, n, k), "W");
  Require(cublasLtMatrixLayoutCreate(&s.x, type, k, m, k), "x");
  Require(cublasLtMatrixLayoutCreate(&s.out, CUDA_R_16BF, n, m, n), "out");
  Require(cublasLtMatmulPreferenceCreate(&s.preference), "preference");
  Require(
      cublasLtMatmulPreferenceSetAttribute(s.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &kWorkspace, sizeof(kWorkspace)),
      "workspace");
  if (cudaMalloc(&s.workspace, kWorkspace) != cudaSuccess) std::exit(1);
  if (s.scaled) SetScales(s, s.workspace, s.workspace);  // the search asks for them
  if (cublasLtMatmulAlgoGetHeuristic(s.handle, s.product, s.w, s.x, s.out, s.out, s.preference,
                                     kMostAlgorithms, s.found, &s.count) != CUBLAS_STATUS_SUCCESS) {
    s.count = 0;
  }
}

LibraryProduct::~LibraryProduct() {
  cublasLtMatmulPreferenceDestroy(state_->preference);
  cublasLtMatrixLayoutDestroy(state_->out);
  cublasLtMatrixLayoutDestroy(state_->x);
  cublasLtMatrixLayoutDestroy(state_->w);
  cublasLtMatmulDescDestroy(state_->product);
  cublasLtDestroy(state_->handle);
  cudaFree(state_->workspace);
  delete state_;
}

int LibraryProduct::algorithms() const {
  return state_->count;
}

bool LibraryProduct::Launch(int algorithm, const Data& d, cudaStream_t stream) const {
  const State& s = *state_;
  if (s.scaled) SetScales(s, d.w_scales, d.x_scales);
  const float one = 1, zero = 0;
  return cublasLtMatmul(s.handle, s.product, &one, d.w, s.w, d.x, s.x, &zero, d.out, s.out, d.out,
                        s.out, &s.found[algorithm].algo, s.workspace, kWorkspace,
                        stream) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace fathom::bench
