// What is different in the narrow MLA decode kernel with an FP8 cache.
#pragma once

#include "ops/attend_absorbed/mla_decode_narrow.cuh"

namespace fathom::mla {

#define NARROW_CONSUMER                         \
  template <int kGroup, bool kFp8, int kTokens> \
  __device__ __forceinline__ void NarrowConsumer<kGroup, kFp8, kTokens>

NARROW_CONSUMER::PrepareQuery() {
  constexpr int kThreadsOfColumn = 256 / kColumns;
  const int column = (kGroup * 128 + thread_) / kThreadsOfColumn, part = thread_ % kThreadsOfColumn;
  const float inverse =
      PrepareQueryColumn<kThreadsOfColumn>(s_.query[0], kTokens * kHeadChunkBytes, column, part);
  if (part == 0) s_.query_factor[By::PlaceOf(column)] = __fmul_rn(scale_log2_, inverse);
  FenceAsyncShared();
  NamedBarrierSync(kNarrowQuery, 256);  // it also parts the weights of two items
}

NARROW_CONSUMER::ScoreCodes(int32_t seen) {
  AwaitTile(kGroup, 0);
  scales_.Load(s_.scales[phase_.Buffer(kGroup)], seen);
  mla::ScoreCodes<kColumns>(scores_, scales_, SharedAddress(Chunk(kGroup, 0)), s_.query[0],
                            [this] { AwaitTile(kGroup, 1); });
  scales_.Finish<kColumns>(scores_, By::Own(s_.query_factor));
}

NARROW_CONSUMER::AddCodes(int tile) {
  mla::AddCodes<kColumns>(out_, SharedAddress(Chunk(tile, kCodeChunks / 2 * kGroup)),
                          SharedAddress(s_.weights[Turn()]), tile);
}

#undef NARROW_CONSUMER

}  // namespace fathom::mla
