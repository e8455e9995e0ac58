// Packs weights for the reference's products.
#pragma once

#include <memory>

#include "products/packed_weight.h"

namespace fathom {

// `quantize_activations`: to E4M3, where the weight is FP8 and its activations need not be exact.
// kUnimplemented names what cannot be packed so.
Result<std::unique_ptr<PackedWeight>> PackForReference(const PackArgs& args,
                                                       bool quantize_activations);

}  // namespace fathom
