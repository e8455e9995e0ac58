#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace fathom {
namespace {

uint64_t PairOf(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t HashOf(uint64_t pair) {
  return (pair * 0x9E3779B97F4A7C15u) >> 29;
}

// Bytes that no UTF-8 text contains.
bool NeverInUtf8(int byte) {
  return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
}

}  // namespace

Result<Bpe> Bpe::Build(const Vocabulary& vocabulary, const std::vector<MergeRule>& rules,
                       bool whole_words) {
  Bpe bpe(vocabulary);
  TRY(bpe.FindBytes());
  bpe.FillMerges(rules);
  bpe.FindWholeWords(whole_words);
  return bpe;
}

Status Bpe::FindBytes() {
  byte_ids_.fill(-1);
  for (int32_t id = 0; id < vocabulary_->size(); ++id) {
    const TokenInfo& token = (*vocabulary_)[TokenId{id}];
    if (token.byte_level && token.bytes.size() == 1) {
      byte_ids_[static_cast<uint8_t>(token.bytes[0])] = id;
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (byte_ids_[byte] < 0 && !NeverInUtf8(byte)) {
      return InvalidArgument(
          "the vocabulary has no token for byte 0x{:02X}, so that text would be lost: only "
          "byte-level BPE with a complete byte alphabet is supported",
          byte);
    }
  }
  return {};
}

void Bpe::FillMerges(const std::vector<MergeRule>& rules) {
  merges_.assign(std::bit_ceil(rules.size() * 2 + 2), {kNoPair, 0, 0});
  const size_t mask = merges_.size() - 1;
  for (size_t rank = 0; rank < rules.size(); ++rank) {
    const MergeRule& rule = rules[rank];
    const uint64_t pair = PairOf(Raw(rule.left), Raw(rule.right));
    size_t place = HashOf(pair) & mask;
    while (merges_[place].pair != kNoPair && merges_[place].pair != pair)
      place = (place + 1) & mask;
    merges_[place] = {pair, static_cast<int32_t>(rank), Raw(rule.merged)};
  }
}

void Bpe::FindWholeWords(bool whole_words) {
  Scratch scratch;
  for (int32_t id = 0; id < vocabulary_->size(); ++id) {
    const TokenInfo& token = (*vocabulary_)[TokenId{id}];
    if (!token.byte_level) continue;
    if (!whole_words) {
      const std::span<const TokenId> ids = MergeAll(token.bytes, /*added_allowed=*/true, &scratch);
      if (ids.size() != 1 || ids[0] != TokenId{id}) continue;
    }
    whole_.emplace(token.bytes, TokenId{id});
  }
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right, bool added_allowed) const {
  const uint64_t pair = PairOf(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t place = HashOf(pair) & mask; merges_[place].pair != kNoPair;
       place = (place + 1) & mask) {
    const Merge& merge = merges_[place];
    if (merge.pair != pair) continue;
    return added_allowed || !(*vocabulary_)[TokenId{merge.merged}].added ? &merge : nullptr;
  }
  return nullptr;
}

namespace {

constexpr size_t kLeastRoom = 64;  // of a Scratch, in bytes of a word

// For the heap of candidates. An object, so that it is inlined.
constexpr auto kWorse = [](uint64_t a, uint64_t b) { return a > b; };

int32_t PlaceOf(uint64_t candidate) {
  return static_cast<int32_t>(candidate);
}
int32_t RankOf(uint64_t candidate) {
  return static_cast<int32_t>(candidate >> 32);
}

}  // namespace

// The merge of the symbol at `place` with the next one.
const Bpe::Merge* Bpe::MergeAt(const Scratch& scratch, int32_t place, bool added_allowed) const {
  const auto next = static_cast<size_t>(scratch.ends[place]) + 1;
  if (next == scratch.ids.size()) return nullptr;
  return FindMerge(Raw(scratch.ids[place]), Raw(scratch.ids[next]), added_allowed);
}

// Whether the pair has changed since, and so has become longer.
bool Bpe::IsStale(const Scratch& scratch, uint64_t candidate, bool added_allowed) const {
  const int32_t place = PlaceOf(candidate);
  if (Raw(scratch.ids[place]) < 0) return true;
  const Merge* merge = MergeAt(scratch, place, added_allowed);
  return merge == nullptr || merge->rank != RankOf(candidate);
}

// Puts the pair that begins at `place` into the queue if it has a merge. Of those in the queue one
// per pair of symbols is not stale, so that there is always room for all; and after k merges at
// least k can go, so that this is done some log n times for a word of n bytes.
void Bpe::Push(int32_t place, bool added_allowed, Scratch* scratch) const {
  const Merge* merge = MergeAt(*scratch, place, added_allowed);
  if (merge == nullptr) return;
  std::vector<uint64_t>& queue = scratch->queue;
  if (queue.size() == queue.capacity()) {
    std::erase_if(queue,
                  [&](uint64_t candidate) { return IsStale(*scratch, candidate, added_allowed); });
    std::make_heap(queue.begin(), queue.end(), kWorse);
  }
  queue.push_back(PairOf(merge->rank, place));
  std::push_heap(queue.begin(), queue.end(), kWorse);
}

std::span<const TokenId> Bpe::MergeAll(std::string_view word, bool added_allowed,
                                       Scratch* scratch) const {
  auto& [ids, ends, queue] = *scratch;
  const auto size = static_cast<int32_t>(word.size());
  if (word.size() > ids.capacity()) {
    *scratch = {};  // before the larger one is there
    const size_t room = std::max(word.size(), kLeastRoom);
    ids.reserve(room);
    ends.reserve(room);
    queue.reserve(room);
  }
  ids.clear();
  ends.clear();
  queue.clear();
  for (int32_t i = 0; i < size; ++i) {
    ids.push_back(TokenId{byte_ids_[static_cast<uint8_t>(word[i])]});
    ends.push_back(i);
  }
  for (int32_t i = 0; i < size; ++i) Push(i, added_allowed, scratch);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), kWorse);
    const uint64_t best = queue.back();
    queue.pop_back();
    if (IsStale(*scratch, best, added_allowed)) continue;
    const int32_t left = PlaceOf(best), right = ends[left] + 1, last = ends[right];
    ids[left] = TokenId{MergeAt(*scratch, left, added_allowed)->merged};
    ids[right] = TokenId{-1};
    ends[left] = last;
    ends[last] = left;
    if (left > 0) Push(ends[left - 1], added_allowed, scratch);
    Push(left, added_allowed, scratch);
  }
  size_t count = 0;
  for (int32_t at = 0; at < size; at = ends[at] + 1) ids[count++] = ids[at];
  return {ids.data(), count};
}

std::span<const TokenId> Bpe::Encode(std::string_view word, bool added_allowed,
                                     Scratch* scratch) const {
  const auto whole = whole_.find(word);
  if (whole != whole_.end() && (added_allowed || !(*vocabulary_)[whole->second].added)) {
    return {&whole->second, 1};
  }
  return MergeAll(word, added_allowed, scratch);
}

}  // namespace fathom
