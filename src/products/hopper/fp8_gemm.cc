// Checks an FP8 product and chooses its tile.
#include "products/hopper/fp8_gemm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "products/hopper/fp8_gemm_launch.h"

namespace fathom {
namespace fp8_gemm {
namespace {

// Checks what both kinds of product require, and fills in what they share.
Problem MakeProblem(const Fp8Tokens& x, const Fp8Weights& w, const Fp8TokenGroups& groups,
                    bool counts_early) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  CHECK(aligned(x.codes) && aligned(x.scales) && aligned(w.codes), "fp8_gemm: unaligned input");
  CHECK(x.channels == w.in && w.in % 16 == 0 && w.in > 0, "fp8_gemm: x has {} channels, W {}",
        x.channels, w.in);
  CHECK(x.scale_pitch % 4 == 0 && x.scale_pitch >= x.capacity, "fp8_gemm: {} scales for {} tokens",
        x.scale_pitch, x.capacity);
  CHECK(w.count >= 1 && w.count <= kMaxGroups, "fp8_gemm: {} matrices", w.count);
  CHECK(w.in <= kRun * kMostRuns, "fp8_gemm: {} channels, at most {}", w.in, kRun * kMostRuns);
  CHECK(w.part_out > 0 && w.part_out % 8 == 0, "fp8_gemm: {} output channels", w.part_out);
  CHECK(groups.begins != nullptr || groups.capacity * w.count <= x.capacity,
        "fp8_gemm: {} tokens for {} matrices of {}", x.capacity, w.count, groups.capacity);
  Problem problem = {.x = x, .w = w, .groups = groups, .args = {}};
  Args& args = problem.args;
  args.weight_scales = w.scales;
  const bool dense = w.count == 1 && groups.begins == nullptr;
  args.counts = dense ? nullptr : groups.counts;
  args.begins = groups.begins;
  args.live = dense ? groups.counts : nullptr;
  args.counts_are_there = dense || counts_early;
  args.groups = static_cast<int32_t>(w.count);
  args.group_capacity = static_cast<int32_t>(groups.capacity);
  args.parts = static_cast<int32_t>(w.parts);
  args.part_out = static_cast<int32_t>(w.part_out);
  args.runs = static_cast<int32_t>(CeilDivide(w.in, kRun));
  args.chains = dense ? Fp8ChainsOf(w) : 1;
  args.scale_groups = static_cast<int32_t>(CeilDivide(w.part_out, kRun));
  return problem;
}

// Tokens of a matrix up to which tiles of 64 are best. Of sorted groups some have more than others,
// and shared experts all tokens.
int64_t MostOfSmallTile(const Fp8TokenGroups& groups) {
  return groups.begins == nullptr ? 64 : 48;
}

constexpr int64_t kMostTokensOfChains = 512;  // of more, one chain takes less time

// For several chains: blocks share a tile, a chain each, where all of them are at work at the same
// time.
Fp8Tile ChooseTileOfChains(int64_t tokens, int64_t out, int chains) {
  const int64_t clusters = chains == 4 ? 30 : chains == 3 ? 42 : 64;
  const auto at_once = [&](int64_t tile_tokens, int64_t tile_channels) {
    return CeilDivide(tokens, tile_tokens) * CeilDivide(out, tile_channels) <= clusters;
  };
  if (at_once(64, 64)) return Fp8Tile::k64x64Chains;
  if (at_once(64, 128)) return Fp8Tile::k64x128Chains;
  if (at_once(128, 128)) return Fp8Tile::k128x128Chains;
  // A round of 128x64 takes 0.69 of the time of one of 128x128.
  const auto rounds = [&](int64_t tile_channels) {
    return static_cast<double>(
        CeilDivide(CeilDivide(tokens, 128) * CeilDivide(out, tile_channels), Multiprocessors()));
  };
  return 0.69 * rounds(64) <= rounds(128) ? Fp8Tile::k128x64Folds : Fp8Tile::k128x128FoldsPair;
}

// Measured on an H200 (docs/design/fp8-gemm.md): few tokens are a question of reading weights
// through as many multiprocessors as pay; many, of rounds of tiles.
Fp8Tile ChooseTile(const Fp8GemmParams& p, int chains) {
  const int64_t tokens = TypicalTokens(p.groups);
  if (chains > 1 && (p.batch_invariant || tokens <= kMostTokensOfChains)) {
    return ChooseTileOfChains(tokens, p.w.part_out, chains);
  }
  const int64_t matrices = std::min(p.w.count, p.x.capacity) * p.w.parts;
  const auto rounds = [&](int64_t tile_tokens, int64_t tile_channels) {
    return CeilDivide(
        matrices * CeilDivide(tokens, tile_tokens) * CeilDivide(p.w.part_out, tile_channels),
        Multiprocessors());
  };
  if (tokens <= MostOfSmallTile(p.groups)) {
    if (rounds(64, 32) == 1) return Fp8Tile::k64x32;
    return rounds(64, 64) == 1 ? Fp8Tile::k64x64 : Fp8Tile::k64x128;
  }
  if (tokens <= 128 && rounds(64, 64) == 1) return Fp8Tile::k64x64;
  // The tokens of sorted groups vary, and end anywhere in a tile.
  const auto cost = [&](double round, int64_t tile_tokens, int64_t tile_channels) {
    const double down = p.groups.begins != nullptr
                            ? static_cast<double>(tokens) / static_cast<double>(tile_tokens) + 0.5
                            : static_cast<double>(CeilDivide(tokens, tile_tokens));
    return round *
           std::ceil(down *
                     static_cast<double>(matrices * CeilDivide(p.w.part_out, tile_channels)) /
                     static_cast<double>(Multiprocessors()));
  };
  // A round of each, 256x128's being 1.
  const std::pair<Fp8Tile, double> tiles[] = {{Fp8Tile::k256x128Pair, cost(1, 256, 128)},
                                              {Fp8Tile::k128x256Pair, cost(1, 128, 256)},
                                              {Fp8Tile::k128x192, cost(0.78, 128, 192)},
                                              {Fp8Tile::k128x128, cost(0.53, 128, 128)},
                                              {Fp8Tile::k128x64, cost(0.34, 128, 64)}};
  return std::ranges::min_element(tiles, {}, &std::pair<Fp8Tile, double>::second)->first;
}

}  // namespace
}  // namespace fp8_gemm

void LaunchFp8Gemm(const Fp8GemmParams& p, cudaStream_t stream) {
  fp8_gemm::Problem problem = fp8_gemm::MakeProblem(p.x, p.w, p.groups, p.counts_early);
  CHECK(p.out_stride % 8 == 0 && p.out_stride >= p.w.parts * p.w.part_out,
        "fp8_gemm: outputs of {} for {} channels", p.out_stride, p.w.parts * p.w.part_out);
  problem.args.out = p.out;
  problem.args.out_stride = p.out_stride;
  problem.args.f32 = p.output == Fp8GemmOutput::kF32;
  const int chains = problem.args.chains;
  const Fp8Tile tile = p.tile == Fp8Tile::kAuto ? fp8_gemm::ChooseTile(p, chains) : p.tile;
  const bool chained = tile >= Fp8Tile::k64x64Chains;
  CHECK(chained ? chains > 1 : chains == 1 || !p.batch_invariant, "fp8_gemm: tile {} for {} chains",
        static_cast<int>(tile), chains);
  if (!chained) problem.args.chains = 1;
  fp8_gemm::LaunchTile(tile, problem, stream);
}

void LaunchFp8GemmSilu(const Fp8GemmSiluParams& p, cudaStream_t stream) {
  fp8_gemm::Problem problem = fp8_gemm::MakeProblem(p.x, p.w, p.groups, p.counts_early);
  CHECK(p.w.parts == 2 && p.w.part_out % 16 == 0, "fp8_gemm_silu: {} parts of {} channels",
        p.w.parts, p.w.part_out);
  CHECK(p.out_scale_pitch >= p.x.capacity, "fp8_gemm_silu: {} scales for {} tokens",
        p.out_scale_pitch, p.x.capacity);
  problem.args.out = p.out;
  problem.args.out_stride = p.w.part_out;
  problem.args.out_scales = p.out_scales;
  problem.args.out_scale_pitch = p.out_scale_pitch;
  problem.args.ue8m0 = p.scale_ue8m0;
  const int64_t tokens = fp8_gemm::TypicalTokens(p.groups);
  const Fp8SiluTile tile = p.tile != Fp8SiluTile::kAuto                    ? p.tile
                           : tokens <= fp8_gemm::MostOfSmallTile(p.groups) ? Fp8SiluTile::k64x64Pair
                           : tokens <= 128                                 ? Fp8SiluTile::k128x128
                                           : Fp8SiluTile::k128x128Pair;
  fp8_gemm::LaunchSiluTile(tile, problem, stream);
}

}  // namespace fathom
