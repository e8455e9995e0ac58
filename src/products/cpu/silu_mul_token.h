// silu(gate) * up for one token: behind gated products, and for the op of that name.
#pragma once

#include <cstdint>

namespace fathom {

// out[i] = silu(gate[i]) * up[i]; an element's bits do not depend on where it stands.
void SiluMulToken(const float* gate, const float* up, int64_t n, float* out);

}  // namespace fathom
