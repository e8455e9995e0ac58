#include "ops/check.h"

namespace fathom {

void Check(const EmbedArgs& a) {
  CHECK(a.table.rank() == 2 && (a.table.dtype() == DType::kF32 || a.table.dtype() == DType::kF16 ||
                                a.table.dtype() == DType::kBF16),
        "embed: table is {}", a.table.ToString());
  CheckTensor("embed: table", a.table, a.table.dtype(), {a.table.dim(0), a.table.dim(1)});
  CheckActivation("embed: out", a.out, 2);
  CheckTensor("embed: out", a.out, a.out.dtype(), {a.out.dim(0), a.table.dim(1)});
  CheckTensor("embed: ids", a.ids, DType::kI32, {a.out.dim(0)});
  CHECK(a.first >= 0 && (a.vocab == 0 ? a.first == 0 : a.first + a.table.dim(0) <= a.vocab),
        "embed: ids {} to {} of {}", a.first, a.first + a.table.dim(0), a.vocab);
  CheckLive("embed: live", a.live);
}

}  // namespace fathom
