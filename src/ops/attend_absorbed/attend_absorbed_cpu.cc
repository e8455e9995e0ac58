// Absorbed attention (attend_piece_cpu.cc), split over tokens, groups of heads and pieces of the
// context, so that one token can use every core. Pieces are merged in order of position, each in
// the same way, whoever computed it.
#include "ops/attend_absorbed/attend_absorbed_cpu.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu_ops.h"
#include "ops/page_tokens.h"
#include "tensor/buffer.h"

namespace fathom {
namespace {

// Pieces are computed in waves; each task of a wave leaves its result in work space.
constexpr int64_t kTasksPerThread = 16;

class AbsorbedAttention {
 public:
  AbsorbedAttention(Arena& arena, const AttendAbsorbedArgs& args, int threads)
      : a_(args),
        heads_(args.q_latent.dim(1)),
        groups_((heads_ + kHeadGroup - 1) / kHeadGroup),
        latent_(args.q_latent.dim(2)),
        wave_(kTasksPerThread * threads),
        first_task_(arena.Allocate(DType::kI64, {args.q_latent.dim(0) + 1})),
        out_(arena.Allocate(DType::kF32, {wave_, kHeadGroup, latent_})),
        max_(arena.Allocate(DType::kF32, {wave_, kHeadGroup})),
        sum_(arena.Allocate(DType::kF32, {wave_, kHeadGroup})),
        merged_max_(arena.Allocate(DType::kF32, {args.q_latent.dim(0), heads_})),
        merged_sum_(arena.Allocate(DType::kF32, {args.q_latent.dim(0), heads_})) {}

  void Run(ThreadPool& pool) {
    const int64_t tokens = Live(a_.tokens.live, a_.q_latent.dim(0));
    int64_t* first = first_task_.As<int64_t>();
    first[0] = 0;
    for (int64_t t = 0; t < tokens; ++t) first[t + 1] = first[t] + Pieces(t) * groups_;
    for (int64_t begin = 0; begin < first[tokens]; begin += wave_) {
      const int64_t end = std::min(first[tokens], begin + wave_);
      pool.ParallelFor(end - begin, TaskGrain(end - begin, pool.threads()),
                       [&](int64_t i, int64_t stop, int) {
                         AttendPiece piece = PieceOf(begin + i, tokens, i);
                         for (; i < stop; ++i) {
                           AttendPiece next{};
                           if (i + 1 < stop) {
                             next = PieceOf(begin + i + 1, tokens, i + 1);
                             piece.next = &next;
                           }
                           Attend(piece);
                           piece = next;
                         }
                       });
      const int64_t token = TokenOf(begin, tokens), last = TokenOf(end - 1, tokens);
      pool.ParallelFor((last - token + 1) * heads_, Grain(8 * latent_),
                       [&](int64_t i, int64_t stop, int) {
                         for (; i < stop; ++i) Merge(token + i / heads_, i % heads_, begin, end);
                       });
    }
  }

 private:
  int64_t Length(int64_t t) const { return int64_t{a_.tokens.positions.As<int32_t>()[t]} + 1; }
  int64_t Pieces(int64_t t) const { return (Length(t) + kPiece - 1) / kPiece; }
  // Tasks of a token are in order of (piece, group): groups find the piece in cache.
  int64_t TokenOf(int64_t task, int64_t tokens) const {
    const int64_t* first = first_task_.As<int64_t>();
    return std::upper_bound(first, first + tokens + 1, task) - first - 1;
  }
  // Short contexts are not worth waking threads for; ranges are worth fetching ahead in.
  int64_t TaskGrain(int64_t tasks, int threads) const {
    constexpr int64_t kRangesPerThread = 4;
    const int64_t keys = std::min(kPiece, a_.tokens.page_table.dim(1) * kPageTokens);
    return std::max(Grain(std::min(heads_, kHeadGroup) * keys * latent_ / 8),
                    tasks / (kRangesPerThread * threads));
  }

  AttendPiece PieceOf(int64_t task, int64_t tokens, int64_t slot) const {
    const int64_t t = TokenOf(task, tokens), local = task - first_task_.As<int64_t>()[t];
    const int64_t begin = local / groups_ * kPiece, head = local % groups_ * kHeadGroup;
    AttendPiece piece = {
        .q_latent = a_.q_latent.As<float>(t) + head * latent_,
        .q_rope = a_.q_rope.As<float>(t) + head * a_.q_rope.stride(1),
        .q_latent_stride = latent_,
        .q_rope_stride = a_.q_rope.stride(1),
        .heads = std::min(kHeadGroup, heads_ - head),
        .latent = {},
        .rope = {},
        .scales = {},
        .latent_stride = a_.pages.latent.stride(1),
        .rope_stride = a_.pages.rope.stride(1),
        .latent_type = a_.pages.latent.dtype(),
        .keys = std::min(kPiece, Length(t) - begin),
        .latent_dim = latent_,
        .rope_dim = a_.q_rope.dim(2),
        .scale = a_.scale,
        .out = out_.As<float>(slot),
        .max = max_.As<float>(slot),
        .sum = sum_.As<float>(slot),
        .next = nullptr,
    };
    const int32_t* table = SlotPages(a_.tokens.page_table, a_.tokens.slots.As<int32_t>()[t]);
    for (int64_t i = 0; i * kPageTokens < piece.keys; ++i) {
      const int32_t page =
          PageOf(table, a_.tokens.page_table.dim(1), begin + i * kPageTokens, a_.pages);
      piece.latent[i] = a_.pages.latent.At(page).data();
      piece.rope[i] = a_.pages.rope.At(page).data();
      if (a_.pages.scales.rank() > 0) piece.scales[i] = a_.pages.scales.As<float>(page);
    }
    return piece;
  }

  // Merges the pieces of one head that tasks [begin, end) computed; after the last, divides.
  void Merge(int64_t t, int64_t head, int64_t begin, int64_t end) const {
    const int64_t first = first_task_.As<int64_t>()[t], pieces = Pieces(t);
    const int64_t group = head / kHeadGroup;
    float* out = a_.out.As<float>(t) + head * latent_;
    float* max = merged_max_.As<float>(t) + head;
    float* sum = merged_sum_.As<float>(t) + head;
    const int64_t before = std::max<int64_t>(0, begin - first - group);
    for (int64_t piece = (before + groups_ - 1) / groups_; piece < pieces; ++piece) {
      const int64_t task = first + piece * groups_ + group;
      if (task >= end) break;
      const int64_t slot = task - begin, in_group = head % kHeadGroup;
      const float* piece_out = out_.As<float>(slot) + in_group * latent_;
      const float piece_max = max_.As<float>(slot)[in_group],
                  piece_sum = sum_.As<float>(slot)[in_group];
      if (piece == 0) {
        *max = piece_max;
        *sum = piece_sum;
        std::copy_n(piece_out, latent_, out);
      } else {
        const float both = std::max(*max, piece_max);
        const float keep = std::exp(*max - both), take = std::exp(piece_max - both);
        *max = both;
        *sum = *sum * keep + piece_sum * take;
        for (int64_t i = 0; i < latent_; ++i) out[i] = out[i] * keep + piece_out[i] * take;
      }
      if (piece == pieces - 1) {
        for (int64_t i = 0; i < latent_; ++i) out[i] /= *sum;
      }
    }
  }

  const AttendAbsorbedArgs& a_;
  const int64_t heads_, groups_, latent_, wave_;
  TensorView first_task_;               // I64 [tokens + 1]
  TensorView out_, max_, sum_;          // of the tasks of a wave: F32 [wave, kHeadGroup(, latent)]
  TensorView merged_max_, merged_sum_;  // F32 [tokens, heads]
};

}  // namespace

size_t AttendAbsorbedCpuWorkspace(const Stream& stream, const AttendAbsorbedArgs& a) {
  Arena arena = Arena::Measuring();
  AbsorbedAttention(arena, a, Threads(stream));
  const size_t values = a.values.weight == nullptr ? 0 : HeadLinearCpuWorkspace(stream, a.values);
  return std::max(arena.used(), values);
}

void AttendAbsorbedCpu(OpContext& context, const AttendAbsorbedArgs& a) {
  Arena arena(context.workspace.data(), context.workspace.size());
  AbsorbedAttention(arena, a, Threads(context.stream)).Run(Pool(context));
  if (a.values.weight != nullptr) HeadLinearCpu(context, a.values);
}

}  // namespace fathom
