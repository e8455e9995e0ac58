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
  std::vector<TokenId> ids;
  for (int32_t id = 0; id < vocabulary_->size(); ++id) {
    const TokenInfo& token = (*vocabulary_)[TokenId{id}];
    if (!token.byte_level) continue;
    ids.clear();
    if (!whole_words) MergeAll(token.bytes, /*added_allowed=*/true, &scratch, &ids);
    if (whole_words || (ids.size() == 1 && ids[0] == TokenId{id})) {
      whole_.emplace(token.bytes, TokenId{id});
    }
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
bool Worse(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}
}  // namespace

// Puts the pair that begins at `position` into the queue if it has a merge.
void Bpe::Push(int32_t position, bool added_allowed, Scratch* scratch) const {
  const Scratch::Symbol& symbol = scratch->symbols[position];
  if (symbol.next < 0) return;
  const Merge* merge = FindMerge(symbol.id, scratch->symbols[symbol.next].id, added_allowed);
  if (merge == nullptr) return;
  scratch->queue.push_back({merge->rank, position, merge->merged});
  std::push_heap(scratch->queue.begin(), scratch->queue.end(), Worse);
}

void Bpe::MergeAll(std::string_view word, bool added_allowed, Scratch* scratch,
                   std::vector<TokenId>* ids) const {
  std::vector<Scratch::Symbol>& symbols = scratch->symbols;
  std::vector<Scratch::Candidate>& queue = scratch->queue;
  const auto size = static_cast<int32_t>(word.size());
  symbols.clear();
  queue.clear();
  for (int32_t i = 0; i < size; ++i) {
    symbols.push_back({byte_ids_[static_cast<uint8_t>(word[i])], i - 1, i + 1 < size ? i + 1 : -1});
  }
  for (int32_t i = 0; i < size; ++i) Push(i, added_allowed, scratch);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), Worse);
    const Scratch::Candidate best = queue.back();
    queue.pop_back();
    Scratch::Symbol& left = symbols[best.position];
    if (left.id < 0 || left.next < 0) continue;
    Scratch::Symbol& right = symbols[left.next];
    // A candidate whose symbols have changed since is stale, unless they still give the same token
    // (as Hugging Face has it, which decides the order of merges in rare words).
    const Merge* merge = FindMerge(left.id, right.id, added_allowed);
    if (merge == nullptr || merge->merged != best.merged) continue;
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = best.position;
    if (left.previous >= 0) Push(left.previous, added_allowed, scratch);
    Push(best.position, added_allowed, scratch);
  }
  for (int32_t at = size > 0 ? 0 : -1; at >= 0; at = symbols[at].next) {
    ids->push_back(TokenId{symbols[at].id});
  }
}

void Bpe::Encode(std::string_view word, bool added_allowed, Scratch* scratch,
                 std::vector<TokenId>* ids) const {
  const auto whole = whole_.find(word);
  if (whole != whole_.end() && (added_allowed || !(*vocabulary_)[whole->second].added)) {
    ids->push_back(whole->second);
    return;
  }
  MergeAll(word, added_allowed, scratch, ids);
}

}  // namespace fathom
