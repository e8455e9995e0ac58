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
  CheckLive("embed: live", a.live);
}

}  // namespace fathom
