// A latent KV pool with known content, for the tests of ops.
#pragma once

#include <map>
#include <vector>

#include "ops/testing.h"

namespace fathom {

// Slots whose pages are scattered over the pool. Positions that no one wrote hold NaN.
class TestPages {
 public:
  // `dtype`: of latents; the keys beside E4M3 are BF16. Page `max_pages * slots` and the one after
  // belong to no slot.
  TestPages(DType dtype, int slots, int max_pages, int latent, int rope, uint64_t seed = 1);

  // Writes positions [0, n) of a slot with numbers that depend on `seed` alone.
  void Fill(int slot, int n, uint64_t seed);
  void Set(int slot, int position, const std::vector<float>& latent,
           const std::vector<float>& rope);
  std::vector<float> Latent(int slot, int position) const;
  std::vector<float> Rope(int slot, int position) const;

  int latent_dim() const { return format_.At(KvPart::kLatent).width; }
  int rope_dim() const { return format_.At(KvPart::kRope).width; }
  int slots() const { return static_cast<int>(table_.view().dim(0)); }
  const KvPages& pages() const { return pages_; }
  const TestTensor& table() const { return table_; }

 private:
  // A token of a plane, found without the code under test.
  std::byte* At(const TensorView& plane, int slot, int position) const;
  float* Scale(int slot, int position) const;

  KvFormat format_;
  TestTensor memory_, table_;
  KvPages pages_;
};

// What a latent is once pages of this type have stored it.
std::vector<float> RoundLatent(const std::vector<float>& latent, DType dtype);

// The device tensors of a TokenMap, with room for `capacity` tokens.
struct TestTokens {
  TestTokens(const TestPages& pages, const std::vector<int>& slots,
             const std::vector<int>& positions, int capacity);
  TokenMap map() const;
  TestTensor slots, positions, live;
  TensorView table;
};

}  // namespace fathom
