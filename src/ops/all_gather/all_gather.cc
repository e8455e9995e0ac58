#include "ops/check.h"

namespace fathom {

void Check(const AllGatherArgs& a) {
  CHECK(a.ranks != nullptr, "all_gather: no communicator");
  CheckTensor("all_gather: out", a.out, DType::kF32, {a.out.dim(0), a.out.dim(1)});
  const Share share = ShareOf(a.out.dim(1), a.unit, a.ranks->size(), a.ranks->rank());
  CheckTensor("all_gather: x", a.x, DType::kF32, {a.out.dim(0), share.size()});
  CheckLive("all_gather: live", a.live);
}

}  // namespace fathom
