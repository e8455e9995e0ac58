// Expanded attention by the Hopper kernel where its sizes fit, else by the portable one; the choice
// depends on the model alone.
#include "ops/attend_expanded/flash_attend_cuda.h"
#include "ops/hopper_ops.h"

namespace fathom {
namespace {

bool Fits(const AttendExpandedArgs& a) {
  return a.scale > 0 && a.q.dim(2) == kFlashNope + kFlashRope && a.rope.dim(1) == kFlashRope &&
         a.out.dim(2) == kFlashValue && a.kv.dim(2) == kFlashNope + kFlashValue &&
         a.q.stride(0) % 8 == 0;
}

}  // namespace

void AttendExpandedHopper(OpContext& context, const AttendExpandedArgs& a) {
  if (!Fits(a)) return AttendExpandedCuda(context, a);
  LaunchFlashAttend({.q = a.q.data(),
                     .q_stride = a.q.stride(0),
                     .positions = static_cast<const int32_t*>(a.positions.data()),
                     .kv = a.kv.data(),
                     .rope = a.rope.data(),
                     .tokens = static_cast<int32_t>(a.q.dim(0)),
                     .heads = static_cast<int32_t>(a.q.dim(1)),
                     .context = static_cast<int32_t>(a.kv.dim(0)),
                     .pieces = a.pieces,
                     .scale = a.scale,
                     .out = a.out.data(),
                     .lse = static_cast<float*>(a.lse.data())},
                    Cuda(context).get());
  Cuda(context).CheckLaunch("attend_expanded", a.q);
}

}  // namespace fathom
