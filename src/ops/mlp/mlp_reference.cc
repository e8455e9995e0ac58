#include "ops/mlp/compose_mlp.h"
#include "ops/reference_ops.h"

namespace fathom {

size_t MlpReferenceWorkspace(const Stream& stream, const MlpArgs& a) {
  return ComposedMlpWorkspace(stream, a, {LinearReference, LinearReferenceWorkspace});
}

void MlpReference(OpContext& context, const MlpArgs& a) {
  ComposeMlp(context, a, {LinearReference, LinearReferenceWorkspace}, {SiluMulReference});
}

}  // namespace fathom
