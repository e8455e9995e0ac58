#include "ops/check.h"

namespace fathom {

void Check(const AllGatherArgs& a) {
  CHECK(a.ranks != nullptr, "all_gather: no communicator");
  CheckTensor("all_gather: out", a.out, DType::kF32, {a.out.dim(0), a.out.dim(1)});
  const Share share = ShareOf(a.out.dim(1), a.unit, a.ranks->size(), a.ranks->rank());
  CheckTensor("all_gather: x", a.x, DType::kF32, {a.out.dim(0), share.size()});
  CheckLive("all_gather: live", a.live);
}

// The first rank's share is all of each token, and the others' nothing.
AllGatherArgs Broadcast(const TensorView& x, const TensorView& live, Communicator* ranks) {
  const int64_t tokens = x.dim(0);
  const auto bytes = x.elements() / tokens * static_cast<int64_t>(ByteSize(x.dtype()));
  const auto word = static_cast<int64_t>(sizeof(float)), width = bytes / word;
  CHECK(bytes % word == 0, "broadcast of {}", x.ToString());
  const int64_t mine = ranks->rank() == 0 ? width : 0;
  return {.x = TensorView(x.data(), DType::kF32, {tokens, mine}),
          .live = live,
          .out = TensorView(x.data(), DType::kF32, {tokens, width}),
          .unit = width,
          .ranks = ranks};
}

}  // namespace fathom
