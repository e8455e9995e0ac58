// Checks an FP8 product and chooses its tile.
#include "ops/linear/fp8_gemm_cuda.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"
#include "ops/linear/fp8_gemm_launch.h"

namespace fathom {
namespace fp8_gemm {

int32_t Multiprocessors() {
  static const int32_t count = [] {
    int device = 0, value = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device));
    return value;
  }();
  return count;
}

namespace {

// Checks what both kinds of product require, and fills in what they share.
Problem MakeProblem(const Fp8Rows& x, const Fp8Weights& w, const Fp8RowGroups& groups,
                    bool overlap_launch) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  CHECK(aligned(x.codes) && aligned(x.scales) && aligned(w.codes), "fp8_gemm: unaligned input");
  CHECK(x.channels == w.in && w.in % 16 == 0 && w.in > 0, "fp8_gemm: x has {} channels, W {}",
        x.channels, w.in);
  CHECK(x.scale_pitch % 4 == 0 && x.scale_pitch >= x.capacity, "fp8_gemm: {} scales for {} rows",
        x.scale_pitch, x.capacity);
  CHECK(w.count >= 1 && w.count <= kMaxGroups, "fp8_gemm: {} matrices", w.count);
  CHECK(w.in <= kRun * kMostRuns, "fp8_gemm: {} channels, at most {}", w.in, kRun * kMostRuns);
  CHECK(w.part_out > 0 && w.part_out % 8 == 0, "fp8_gemm: {} output channels", w.part_out);
  CHECK(groups.begins != nullptr || groups.capacity * w.count <= x.capacity,
        "fp8_gemm: {} rows for {} matrices of {}", x.capacity, w.count, groups.capacity);
  Problem problem = {
      .x = x, .w = w, .groups = groups, .args = {}, .overlap_launch = overlap_launch};
  Args& args = problem.args;
  args.weight_scales = w.scales;
  args.counts = groups.counts;
  args.begins = groups.begins;
  args.groups = static_cast<int32_t>(w.count);
  args.group_capacity = static_cast<int32_t>(groups.capacity);
  args.parts = static_cast<int32_t>(w.parts);
  args.part_out = static_cast<int32_t>(w.part_out);
  args.runs = static_cast<int32_t>(CeilDivide(w.in, kRun));
  args.scale_rows = static_cast<int32_t>(CeilDivide(w.part_out, kRun));
  return problem;
}

struct TileShape {
  Fp8Tile tile;
  int rows, channels;
  double cost;  // of one tile and run, 1 being 256x128's; 0: only for few rows
};
constexpr TileShape kShapes[] = {
    {Fp8Tile::k64x16, 64, 16, 0},           {Fp8Tile::k64x32, 64, 32, 0},
    {Fp8Tile::k64x64, 64, 64, 0},           {Fp8Tile::k64x128, 64, 128, 0},
    {Fp8Tile::k64x192, 64, 192, 0},         {Fp8Tile::k128x32, 128, 32, 0},
    {Fp8Tile::k128x64, 128, 64, 0.33},      {Fp8Tile::k128x128, 128, 128, 0.55},
    {Fp8Tile::k256x128Pair, 256, 128, 1.0},
};

// Few rows: the fewest bytes that the busiest block reads. Many: the fewest rounds of tiles.
Fp8Tile ChooseTile(const Fp8GemmParams& p) {
  const int64_t rows = p.groups.typical > 0 ? p.groups.typical : p.groups.capacity;
  const bool few = rows <= 128;
  Fp8Tile best = Fp8Tile::k256x128Pair;
  double least = 0;
  for (const TileShape& shape : kShapes) {
    if (few ? shape.rows != (rows <= 64 ? 64 : 128) : shape.cost == 0) continue;
    const int64_t tiles = p.w.count * p.w.parts * CeilDivide(p.w.part_out, shape.channels) *
                          CeilDivide(rows, shape.rows);
    const double rounds = static_cast<double>(CeilDivide(tiles, Multiprocessors()));
    const double cost = rounds * (few ? static_cast<double>(shape.channels + rows) : shape.cost);
    if (least == 0 || cost < least) {
      best = shape.tile;
      least = cost;
    }
  }
  return best;
}

}  // namespace
}  // namespace fp8_gemm

void LaunchFp8Gemm(const Fp8GemmParams& p, cudaStream_t stream) {
  fp8_gemm::Problem problem = fp8_gemm::MakeProblem(p.x, p.w, p.groups, p.overlap_launch);
  CHECK(p.out_stride % 8 == 0 && p.out_stride >= p.w.parts * p.w.part_out,
        "fp8_gemm: rows of {} for {} channels", p.out_stride, p.w.parts * p.w.part_out);
  problem.args.out = p.out;
  problem.args.out_stride = p.out_stride;
  problem.args.f32 = p.output == Fp8GemmOutput::kF32;
  const Fp8Tile tile = p.tile == Fp8Tile::kAuto ? fp8_gemm::ChooseTile(p) : p.tile;
  CUDA_CHECK(fp8_gemm::LaunchTile(tile, problem, stream));
}

void LaunchFp8GemmSilu(const Fp8GemmSiluParams& p, cudaStream_t stream) {
  fp8_gemm::Problem problem = fp8_gemm::MakeProblem(p.x, p.w, p.groups, p.overlap_launch);
  CHECK(p.w.parts == 2 && p.w.part_out % 16 == 0, "fp8_gemm_silu: {} parts of {} channels",
        p.w.parts, p.w.part_out);
  CHECK(p.out_scale_pitch >= p.x.capacity, "fp8_gemm_silu: {} scales for {} rows",
        p.out_scale_pitch, p.x.capacity);
  problem.args.out = p.out;
  problem.args.out_stride = p.w.part_out;
  problem.args.out_scales = p.out_scales;
  problem.args.out_scale_pitch = p.out_scale_pitch;
  problem.args.ue8m0 = p.scale_ue8m0;
  const int64_t rows = p.groups.typical > 0 ? p.groups.typical : p.groups.capacity;
  const Fp8SiluTile tile = p.tile != Fp8SiluTile::kAuto ? p.tile
                           : rows <= 64                 ? Fp8SiluTile::k64x128
                           : rows <= 128                ? Fp8SiluTile::k128x128
                                                        : Fp8SiluTile::k128x128Pair;
  CUDA_CHECK(fp8_gemm::LaunchSiluTile(tile, problem, stream));
}

}  // namespace fathom
