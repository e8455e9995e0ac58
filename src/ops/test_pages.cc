#include "ops/test_pages.h"

#include <cmath>

#include "quant/e4m3.h"

namespace fathom {

TestPages::TestPages(DType dtype, int slots, int max_pages, int latent, int rope, uint64_t seed)
    : format_(LatentKvFormat(dtype, latent, rope)) {
  const int n = slots * max_pages + 2;
  memory_ = TestTensor(DType::kU8, {n * format_.page_bytes()});
  pages_ = PagesAt(format_, static_cast<std::byte*>(memory_.view().data()), n);
  std::vector<int32_t> order(n - 2);
  for (int i = 0; i < n - 2; ++i) order[i] = i;
  Rng rng(seed);
  for (int i = n - 3; i > 0; --i) std::swap(order[i], order[rng.Below(i + 1)]);
  table_ = Ints({slots, max_pages}, order);
  for (int slot = 0; slot < slots; ++slot) {
    for (int p = 0; p < max_pages * kPageTokens; ++p) {
      Set(slot, p, std::vector<float>(latent, NAN), std::vector<float>(rope, NAN));
    }
  }
}

std::byte* TestPages::At(const TensorView& plane, int slot, int position) const {
  const int64_t page = table_.Ints()[slot * table_.view().dim(1) + position / kPageTokens];
  const int64_t offset = plane.data() == pages_.rope.data() ? format_.Offset(KvPart::kRope) : 0;
  return static_cast<std::byte*>(memory_.view().data()) + page * format_.page_bytes() + offset +
         position % kPageTokens * plane.dim(2) * static_cast<int64_t>(ByteSize(plane.dtype()));
}

float* TestPages::Scale(int slot, int position) const {
  std::byte* page = At(pages_.latent, slot, position / kPageTokens * kPageTokens);
  return reinterpret_cast<float*>(page + format_.Offset(KvPart::kLatentScale)) +
         position % kPageTokens;
}

void TestPages::Set(int slot, int position, const std::vector<float>& latent,
                    const std::vector<float>& rope) {
  for (const auto& [plane, values] : {std::pair{pages_.latent, &latent}, {pages_.rope, &rope}}) {
    std::byte* to = At(plane, slot, position);
    if (plane.dtype() == DType::kF8E4M3) {
      *Scale(slot, position) =
          QuantizeRun(*values, /*scale_ue8m0=*/true, reinterpret_cast<uint8_t*>(to));
      continue;
    }
    const TestTensor place(plane.dtype(), {plane.dim(2)}, *values);
    std::memcpy(to, place.view().data(), plane.dim(2) * ByteSize(plane.dtype()));
  }
}

void TestPages::Fill(int slot, int n, uint64_t seed) {
  for (int p = 0; p < n; ++p) {
    Set(slot, p, Normals(latent_dim(), seed * 100000 + p),
        Normals(rope_dim(), seed * 100000 + 50000 + p));
  }
}

static std::vector<float> Load(const std::byte* at, DType dtype, int n) {
  TestTensor place(dtype, {n});
  std::memcpy(place.view().data(), at, n * ByteSize(dtype));
  return place.Floats();
}

std::vector<float> TestPages::Latent(int slot, int position) const {
  const DType dtype = pages_.latent.dtype();
  if (dtype == DType::kF8E4M3) {
    const auto* codes = reinterpret_cast<const E4M3*>(At(pages_.latent, slot, position));
    std::vector<float> values;
    for (int i = 0; i < latent_dim(); ++i) {
      values.push_back(ToFloat(codes[i]) * *Scale(slot, position));
    }
    return values;
  }
  return Load(At(pages_.latent, slot, position), dtype, latent_dim());
}

std::vector<float> TestPages::Rope(int slot, int position) const {
  return Load(At(pages_.rope, slot, position), pages_.rope.dtype(), rope_dim());
}

std::vector<float> RoundLatent(const std::vector<float>& latent, DType dtype) {
  TestPages pages(dtype, 1, 1, static_cast<int>(latent.size()), 2);
  pages.Set(0, 0, latent, {0, 0});
  return pages.Latent(0, 0);
}

TestTokens::TestTokens(const TestPages& pages, const std::vector<int>& token_slots,
                       const std::vector<int>& token_positions, int capacity)
    : slots(Ints({capacity}, {token_slots.begin(), token_slots.end()})),
      positions(Ints({capacity}, {token_positions.begin(), token_positions.end()})),
      live(Live(static_cast<int32_t>(token_slots.size()))),
      table(pages.table()) {}

TokenMap TestTokens::map() const {
  return {.slots = slots, .positions = positions, .page_table = table, .live = live};
}

}  // namespace fathom
