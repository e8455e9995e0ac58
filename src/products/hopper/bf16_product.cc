#include "products/hopper/bf16_product.h"

#include "products/hopper/bf16_few_tokens.h"
#include "products/hopper/bf16_gemm.h"
#include "products/hopper/bf16_held.h"

namespace fathom {

// All of them give the same bits.
void LaunchBf16ProductOnHopper(const Bf16ProductParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return;
  if (!Bf16GemmFits(p)) return LaunchBf16Product(p, stream);
  if (Bf16HeldFits(p)) return LaunchBf16Held(p, stream);
  if (p.ids != nullptr || (p.counts == nullptr && p.tokens <= kBf16FewTokens)) {
    return LaunchBf16FewTokens(p, stream);
  }
  LaunchBf16Gemm(p, stream);
}

}  // namespace fathom
