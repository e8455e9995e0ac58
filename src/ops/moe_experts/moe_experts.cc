#include "ops/check.h"

namespace fathom {

void Check(const MoeExpertsArgs& a) {
  CheckWeight("moe_experts: gate_up", a.gate_up);
  CheckWeight("moe_experts: down", a.down);
  CHECK(a.gate_up->count == a.down->count && a.gate_up->in == a.down->out &&
            a.gate_up->out == 2 * a.down->in,
        "moe_experts: gate_up is {} x [{}, {}], down is {} x [{}, {}]", a.gate_up->count,
        a.gate_up->out, a.gate_up->in, a.down->count, a.down->out, a.down->in);
  CheckActivation("moe_experts: x", a.x, 2);
  CHECK(a.ids.rank() == 2, "moe_experts: ids are {}", a.ids.ToString());
  const int64_t tokens = a.x.dim(0), topk = a.ids.dim(1);
  CheckTensor("moe_experts: x", a.x, a.x.dtype(), {tokens, a.gate_up->in});
  CheckTensor("moe_experts: ids", a.ids, DType::kI32, {tokens, topk});
  CHECK(a.shared >= 0 && a.shared <= topk && a.shared <= a.down->count,
        "moe_experts: {} shared experts of {}, {} a token", a.shared, a.down->count, topk);
  CheckTensor("moe_experts: weights", a.weights, DType::kF32, {tokens, topk});
  CheckTensor("moe_experts: out", a.out, a.x.dtype(), {tokens, a.down->out});
  CheckLive("moe_experts: live", a.live);
  if (a.norm.absent()) return;
  Check(a.norm);
  CheckSame("moe_experts: norm.x", a.norm.x, a.out);
}

}  // namespace fathom
