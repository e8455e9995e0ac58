// What mla_decode_bench checks: every kernel of MLA decode against fp32, and its bits.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "bench/mla_decode_problem.cuh"
#include "bench/report.cuh"

namespace fathom::bench {

inline JsonObject json;  // that --json writes

inline constexpr double kTolerance = 4e-3;  // weights and output are rounded to BF16: 2^-9 each

inline bool Report(const char* name, bool ok, double error) {
  std::printf("%-34s %-6s error %.2e\n", name, ok ? "ok" : "FAILED", error);
  std::fflush(stdout);
  json.Add("\"check %s\": {\"ok\": %s, \"error\": %.3e}", name, ok ? "true" : "false",
           std::isnan(error) ? -1.0 : error);
  return ok;
}

// All live tokens against the oracle; dead ones must stay as they were.
inline bool CheckProblem(const char* name, const MlaProblem& problem) {
  const std::vector<float> got = Decode(problem), want = Oracle(problem, 0, problem.live);
  const double error = want.empty() ? 0 : RelativeError(got.data(), want.data(), want.size());
  double worst = 0;  // of one token and head
  for (size_t i = 0; i < want.size(); i += kMlaLatent) {
    worst = std::max(worst, RelativeError(&got[i], &want[i], kMlaLatent));
    if (std::isnan(RelativeError(&got[i], &want[i], kMlaLatent))) worst = NAN;
  }
  bool untouched = true;
  for (size_t i = want.size(); i < got.size(); ++i) untouched &= got[i] == got.back();
  if (!untouched) std::printf("  %s: wrote a dead token\n", name);
  return Report(name, error < kTolerance && worst < 3 * kTolerance && untouched, worst);
}

// The same launch again: bits must not change.
inline bool CheckSteady(const std::string& name, const MlaProblem& problem, int times) {
  const std::vector<float> once = Decode(problem);
  bool steady = true;
  for (int i = 0; i < times; ++i) steady &= Decode(problem) == once;
  return Report(("same bits again, " + name).c_str(), steady, steady ? 0 : NAN);
}

// The same tokens in other company: bits must not change. Every `every`-th token is tried alone.
inline bool CheckCompany(const char* name, int heads, int split, const std::vector<MlaRow>& rows,
                         int every, bool fp8 = false) {
  const MlaProblem all(heads, rows, split, 0, fp8);
  const std::string which = std::string(name) + (fp8 ? ", FP8" : "");
  const std::vector<float> together = Decode(all);
  bool same = true;
  for (int t = 0; t < all.live; t += every) {
    const std::vector<int32_t> slot{all.slots[t]}, position{all.positions[t]}, one{1};
    DeviceArray<int32_t> d_slot(slot), d_position(position), d_one(one);
    MlaDecodeParams p = all.Params();
    const int64_t pairs = int64_t{t} * heads;
    p.q_latent = static_cast<const __nv_bfloat16*>(p.q_latent) + pairs * kMlaLatent;
    p.q_rope = static_cast<const __nv_bfloat16*>(p.q_rope) + pairs * p.q_rope_stride;
    p.slots = d_slot.get(), p.positions = d_position.get(), p.live = d_one.get(), p.tokens = 1;
    BENCH_CHECK(cudaMemset(all.out->get(), 0xee, all.out->size() * 2));
    LaunchMlaDecode(p, nullptr);
    BENCH_CHECK(cudaDeviceSynchronize());
    const std::vector<__nv_bfloat16> alone = all.out->ToHost();
    for (int i = 0; i < heads * kMlaLatent; ++i) {
      same &= together[pairs * kMlaLatent + i] == __bfloat162float(alone[i]);
    }
  }
  return Report(("same bits alone, " + which).c_str(), same, same ? 0 : NAN) &
         CheckSteady(which, all, 20);
}

// NaN in the unused tail of every page, and in one latent of one row.
inline bool CheckNan(int heads, bool fp8) {
  MlaProblem problem(heads, {{100, 1}, {300, 2}, {64, 1}, {1000, 4}, {1, 1}}, 256, 0, fp8);
  std::vector<__nv_bfloat16> pool = problem.pool->ToHost();
  const KvFormat& format = problem.format;
  const auto poison = [&](int slot, int position) {
    const int id = problem.page_table[slot * problem.max_pages + position / 64];
    char* page = reinterpret_cast<char*>(pool.data()) + id * format.page_bytes();
    const int in_page = position % 64,
              bytes = kMlaLatent * static_cast<int>(ByteSize(format.At(KvPart::kLatent).dtype));
    // All ones are NaN in every type.
    std::memset(page + in_page * bytes, 0xff, bytes);
    std::memset(page + format.Offset(KvPart::kRope) + in_page * kMlaRope * 2, 0xff, kMlaRope * 2);
    if (fp8) std::memset(page + format.Offset(KvPart::kLatentScale) + in_page * 4, 0xff, 4);
  };
  int token = 0, bad_begin = 0, bad_end = 0;
  for (size_t r = 0; r < problem.rows.size(); ++r) {
    const MlaRow& row = problem.rows[r];
    for (int i = row.context; i % 64 != 0; ++i) poison(problem.slots[token], i);
    if (r == 1) {
      poison(problem.slots[token], 77);
      bad_begin = token, bad_end = token + row.tokens;
    }
    token += row.tokens;
  }
  BENCH_CHECK(
      cudaMemcpy(problem.pool->get(), pool.data(), pool.size() * 2, cudaMemcpyHostToDevice));
  const std::vector<float> got = Decode(problem), want = Oracle(problem, 0, problem.live);
  bool ok = true;
  double worst = 0;
  for (int t = 0; t < problem.live; ++t) {
    const size_t at = size_t(t) * heads * kMlaLatent, count = size_t(heads) * kMlaLatent;
    if (t >= bad_begin && t < bad_end) {
      for (size_t i = at; i < at + count; ++i) ok &= std::isnan(got[i]);
    } else {
      const double error = RelativeError(&got[at], &want[at], count);
      ok &= error < kTolerance;
      worst = std::max(worst, error);
    }
  }
  return Report(("NaN stays, heads " + std::to_string(heads) + (fp8 ? ", FP8" : "")).c_str(), ok,
                worst);
}

// Without batch invariance: right, and the same bits again.
inline bool CheckStepSplit(int heads, const std::vector<MlaRow>& rows, bool fp8) {
  MlaProblem problem(heads, rows, 0, /*dead_tokens=*/1, fp8);
  problem.SplitForStep(problem.tokens, static_cast<int>(rows.size()));
  const std::string name = "split of step, " + std::to_string(heads) + " heads, " +
                           std::to_string(rows.size()) + " rows" + (fp8 ? ", FP8" : "");
  return CheckProblem(name.c_str(), problem) & CheckSteady(name, problem, 10);
}

inline bool CheckStepSplits(const std::vector<MlaRow>& borders, const std::vector<MlaRow>& drafts) {
  const std::vector<MlaRow> one = {{4096}}, equal(128, {4096}), rows_of_four(100, {4097, 4});
  bool ok = true;
  for (const bool fp8 : {false, true}) {
    for (const int heads : {16, 20, 40, 64, 128}) {
      for (const std::vector<MlaRow>& rows : {borders, drafts, one, equal, rows_of_four}) {
        ok &= CheckStepSplit(heads, rows, fp8);
      }
    }
  }
  return ok;
}

inline bool CheckCompanies() {
  bool ok = true;
  const std::vector<MlaRow> few = {{700, 8}, {1300, 1}, {64, 3}, {1025, 5}};
  std::vector<MlaRow> many;
  for (int i = 0; i < 140; ++i) many.push_back({100 + i * 1237 % 5000, 1 + i % 3});
  ok &= CheckCompany("16 heads, few", 16, 256, few, 1);
  ok &= CheckCompany("16 heads, many", 16, 256, many, 17);
  ok &= CheckCompany("16 heads, many, 128", 16, 128, many, 23);
  ok &= CheckCompany("128 heads", 128, 512, few, 1);
  // Rows over the borders of pages, groups and sections.
  const std::vector<MlaRow> pairs = {{2, 2},   {65, 2},  {130, 4}, {129, 3}, {514, 7},
                                     {515, 5}, {700, 1}, {64, 2},  {128, 8}, {4097, 4}};
  ok &= CheckCompany("16 heads, rows over borders", 16, 0, pairs, 1);
  ok &= CheckCompany("8 heads, rows over borders", 8, 0, pairs, 1, /*fp8=*/true);
  // Rows of 3, 5 and 7 in a step of more tokens than are looked at together: a last token is
  // computed beside one of another row, the step's last beside none.
  std::vector<MlaRow> odd;
  for (int i = 0; i < 61; ++i) odd.push_back({9 + i * 83 % 2600, 3 + 2 * (i % 3)});
  ok &= CheckCompany("16 heads, odd rows", 16, 0, odd, 2);
  ok &= CheckCompany("5 heads, odd rows", 5, 128, odd, 3, /*fp8=*/true);
  // Rows over the border of short contexts, of two parts.
  const std::vector<MlaRow> border = {{4098, 8}, {4096, 1}, {4097, 1}, {4100, 3}, {513, 2}};
  for (const bool fp8 : {false, true}) {
    ok &= CheckCompany("20 heads, default", 20, 0, border, 1, fp8);
    ok &= CheckCompany("128 heads, default", 128, 0, border, 1, fp8);
  }
  ok &= CheckCompany("16 heads", 16, 256, many, 17, /*fp8=*/true);
  ok &= CheckCompany("128 heads", 128, 512, few, 1, /*fp8=*/true);
  return ok;
}

// Clusters with several items, the last of them short: while the sums of one were written, scores
// of the next once went four rounds ahead, over maxima that were still to be read, and waited
// forever. And keys once took the place of the next item's query before all of it was read, in one
// of a thousand launches.
inline bool CheckSeveralItems() {
  const std::vector<MlaRow> two = {{32769}, {32801}}, three = {{12300}, {12301}, {12290}};
  std::vector<MlaRow> eight;
  for (int i = 0; i < 8; ++i) eight.push_back({12290 + 70 * i});
  bool ok = true;
  const auto check = [&](const char* name, int heads, const std::vector<MlaRow>& rows) {
    for (const bool fp8 : {false, true}) {
      ok &= CheckCompany(name, heads, 0, rows, 1, fp8);
      ok &= CheckSteady(std::string("many times, ") + name + (fp8 ? ", FP8" : ""),
                        MlaProblem(heads, rows, 0, 0, fp8), 500);
    }
  };
  check("128 heads, clusters of 8 with several items", 128, two);
  check("64 heads, clusters of 8 with several items", 64, three);
  check("128 heads, clusters of 4 with several items", 128, eight);
  return ok;
}

inline bool Check(const std::string& only) {
  bool ok = true;
  const auto run = [&](const char* name, const auto& make) {
    if (only.empty() || only == name) ok &= CheckProblem(name, make());
  };
  const std::vector<MlaRow> borders = {{1},   {2},   {63},  {64},  {65},  {127},
                                       {128}, {129}, {191}, {192}, {255}, {256},
                                       {257}, {511}, {512}, {513}, {1000}};
  const std::vector<MlaRow> drafts = {{1, 1},   {8, 8}, {66, 4},  {130, 3}, {258, 5},
                                      {300, 8}, {5, 5}, {512, 2}, {700, 7}, {514, 6}};
  run("one position", [] { return MlaProblem(16, {{1}}, 256); });
  run("one tile", [] { return MlaProblem(16, {{64}}, 256); });
  run("two tiles", [] { return MlaProblem(16, {{128}}, 256); });
  run("three tiles", [] { return MlaProblem(16, {{150}}, 256); });
  run("one row, two parts", [] { return MlaProblem(16, {{500}}, 256); });
  run("heads 16, borders", [&] { return MlaProblem(16, borders, 256, 3); });
  run("heads 16, drafts", [&] { return MlaProblem(16, drafts, 256, 1); });
  run("heads 128, borders", [&] { return MlaProblem(128, borders, 256, 2); });
  run("heads 128, drafts", [&] { return MlaProblem(128, drafts, 512); });
  for (const int heads : {1, 5, 8, 20, 40, 64, 72, 96}) {
    const std::string name = "heads " + std::to_string(heads) + ", drafts";
    run(name.c_str(), [&] { return MlaProblem(heads, drafts, heads > 16 ? 192 : 128, 1); });
  }
  // Clusters whose last round has fewer tiles than blocks: one of many launches once waited
  // forever.
  for (const auto& [heads, fp8] : {std::pair(64, false), {128, false}, {128, true}}) {
    for (const int context : {65, 577, 1041, 1500}) {
      const MlaProblem problem(heads, {{context}}, 0, 0, fp8);
      for (int i = 0; i < 200 && (only.empty() || only == "short rounds"); ++i) Decode(problem);
    }
  }
  if (only.empty() || only == "several items") ok &= CheckSeveralItems();
  run("no live token", [] { return MlaProblem(16, {}, 256, 4); });
  run("200 rows", [] {
    std::vector<MlaRow> rows;
    for (int i = 0; i < 200; ++i) rows.push_back({1 + i * 37 % 3000, 1});
    return MlaProblem(16, rows, 512, 5);
  });
  run("heads 16, 128 x 4096", [] { return MlaProblem(16, std::vector<MlaRow>(128, {4096}), 512); });
  run("heads 128, 8 x 8192", [] { return MlaProblem(128, std::vector<MlaRow>(8, {8192}), 2048); });
  for (const int heads : {1, 16, 20, 72, 128}) {
    const std::string name = "FP8, heads " + std::to_string(heads);
    const int split = heads > 16 ? 192 : 128;
    run((name + ", borders").c_str(),
        [&] { return MlaProblem(heads, borders, split, 3, /*fp8=*/true); });
    run((name + ", drafts").c_str(),
        [&] { return MlaProblem(heads, drafts, split, 0, /*fp8=*/true); });
    run((name + ", 20 x 3000").c_str(),
        [&] { return MlaProblem(heads, std::vector<MlaRow>(20, {3000}), 512, 0, /*fp8=*/true); });
  }
  if (only.empty() || only == "company") ok &= CheckCompanies();
  if (only.empty() || only == "step") ok &= CheckStepSplits(borders, drafts);
  if (only.empty() || only == "NaN") {
    for (const int heads : {16, 128}) ok &= CheckNan(heads, false) & CheckNan(heads, true);
  }
  return ok;
}

}  // namespace fathom::bench
