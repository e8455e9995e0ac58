#include "ops/convert/convert_tokens.h"
#include "ops/reference_ops.h"

namespace fathom {

void ConvertReference(OpContext&, const ConvertArgs& a) {
  ConvertTokens(a, 0, *a.live.As<int32_t>());
}

}  // namespace fathom
