// QuantizedCopy on CUDA: what writes an activation makes it, where it is asked for, on any GPU; the
// products of Hopper's table read it.
#pragma once

#include "ops/ops.h"
#include "products/cuda/quantize_tokens.h"
#include "products/hopper/fp8_gemm.h"
#include "tensor/buffer.h"

namespace fathom {

// Whether this copy is made, and products read it.
bool HasCodes(const QuantizedCopy& copy);
// Where it goes; without codes: it is not made.
QuantizedOut QuantizedOutOf(const QuantizedCopy& copy);
// As products read it. REQUIRES: HasCodes.
Fp8Tokens Fp8TokensOf(const QuantizedCopy& copy);

// Room for `tokens` tokens' codes and scales as a product with `reader` reads them; as it does.
QuantizedOut TakeQuantized(Arena& arena, int64_t tokens, const PackedWeight& reader);
Fp8Tokens Fp8TokensOf(const QuantizedOut& out, int64_t tokens, const PackedWeight& reader);

}  // namespace fathom
