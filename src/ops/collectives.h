// What moves between ranks: ops with a communicator, all of whose ranks run the same ones in the
// same order, with the same capacities. Sums over ranks' parts are all_reduce_norm's (ops.h).
//
// Experts over ranks: of `routed` experts rank r has ShareOf(routed, 1, ranks, r); the shared ones,
// whose numbers follow, are every rank's, for its own tokens. A pair is a token and one of its
// experts. dispatch takes pairs to the rank that has the expert, moe_experts computes them there,
// as tokens of one expert and weight 1, and combine takes what comes of them back. Outputs travel
// in act, to which every table has rounded them already where one rank sums them; so a token has
// the same bits wherever its experts are.
#pragma once

#include <cstdint>

#include "parallel/communicator.h"
#include "parallel/layout.h"
#include "tensor/tensor_view.h"

namespace fathom {

// out[t] = what all ranks have of it, in the order of ranks: the shares of ShareOf(width, unit). A
// rank that has all of it may have it in place.
struct AllGatherArgs {
  TensorView x;     // F32 [tokens, this rank's share]
  TensorView live;  // I32 [1]: tokens
  TensorView out;   // F32 [tokens, width]
  int64_t unit = 1;
  Communicator* ranks = nullptr;
};

// Of [tokens, ...] in words of four bytes: what the group's first rank has, all have after it.
AllGatherArgs Broadcast(const TensorView& x, const TensorView& live, Communicator* ranks);

// out = x in the other of two types, rounded to nearest even. Pipeline stages hand on the residual
// in BF16 by it.
struct ConvertArgs {
  TensorView x;     // F32 or BF16 [tokens, width]
  TensorView live;  // I32 [1]: tokens
  TensorView out;   // BF16 or F32 [tokens, width]
};

// Which tokens a rank sends, and who has their experts.
struct ExpertExchange {
  Communicator* ranks = nullptr;
  int64_t routed = 0;
  // Token number i of a rank's `each` is its token first + offset + i * stride: ranks of a
  // tensor-parallel group have the same tokens, and each sends every stride'th.
  int64_t first = 0, each = 0;
  int32_t stride = 1, offset = 0;  // the offset alone may differ between ranks
};

// The pairs of all ranks' live tokens whose experts this rank has, in any order.
struct DispatchArgs {
  TensorView x;     // act [tokens, hidden]
  TensorView ids;   // I32 [tokens, topk], in [0, routed + shared)
  TensorView live;  // I32 [1]: tokens
  ExpertExchange exchange;
  TensorView pair_x;       // act [pairs, hidden], out: the pair's token
  TensorView pair_ids;     // I32 [pairs, 1], out: its expert's number among this rank's
  TensorView pair_origin;  // I32 [pairs], out: (rank * each + i) * topk + j
  TensorView pair_live;    // I32 [1], out: pairs
};

// out[t] = sum over j in order of weights[t, j] * what came of pair (t, j), for the live tokens
// among [first, first + each * stride) that this rank has sent; 0 for those that others have.
struct CombineArgs {
  TensorView pair_y;       // act [pairs, hidden]
  TensorView pair_origin;  // I32 [pairs]
  TensorView pair_live;    // I32 [1]
  ExpertExchange exchange;
  TensorView ids;      // as of dispatch
  TensorView weights;  // F32 [tokens, topk]
  TensorView live;     // I32 [1]: tokens
  TensorView out;      // act [tokens, hidden]
};

void Check(const AllGatherArgs&);
void Check(const ConvertArgs&);
void Check(const DispatchArgs&);
void Check(const CombineArgs&);

}  // namespace fathom
