// Byte-pair encoding of one word.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "tokenizer/vocabulary.h"

namespace fathom {

// Two neighbouring tokens that become one; rules come in order of precedence.
struct MergeRule {
  TokenId left, right, merged;
};

// Immutable after Build. THREAD: any.
class Bpe {
 public:
  // Reused between words, to spare allocations. One per thread.
  struct Scratch {
    // By the place of a symbol's first byte: its id, -1 where a symbol has merged into the one
    // before. In the end, the tokens in a row.
    std::vector<TokenId> ids;
    // At a symbol's first byte the place of its last one, and the other way round.
    std::vector<int32_t> ends;
    // A heap of rank << 32 | place: best rank first, then leftmost.
    std::vector<uint64_t> queue;
  };
  // What a Scratch holds for the longest word that it was used for, per byte of that word.
  static constexpr size_t kScratchBytesPerByte = 16;

  // Of equal pairs in `rules` the last counts. `whole_words`: a word that is a token is that token,
  // whatever the rules say (ignore_merges). kInvalidArgument if a byte of UTF-8 text has no token.
  // `vocabulary` must outlive this and not change any more.
  static Result<Bpe> Build(const Vocabulary& vocabulary, const std::vector<MergeRule>& rules,
                           bool whole_words);

  // The tokens of `word`, in O(n log n), until `scratch` is used again. Without `added_allowed`, no
  // merge and no whole word becomes an added token. REQUIRES: `word` is UTF-8 of less than 2^31
  // bytes.
  std::span<const TokenId> Encode(std::string_view word, bool added_allowed,
                                  Scratch* scratch) const;

 private:
  struct Merge {
    uint64_t pair;  // left << 32 | right; kNoPair in a free place
    int32_t rank, merged;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  explicit Bpe(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}
  Status FindBytes();
  void FillMerges(const std::vector<MergeRule>& rules);
  void FindWholeWords(bool whole_words);
  const Merge* FindMerge(int32_t left, int32_t right, bool added_allowed) const;
  const Merge* MergeAt(const Scratch& scratch, int32_t place, bool added_allowed) const;
  void Push(int32_t place, bool added_allowed, Scratch* scratch) const;
  bool IsStale(const Scratch& scratch, uint64_t candidate, bool added_allowed) const;
  std::span<const TokenId> MergeAll(std::string_view word, bool added_allowed,
                                    Scratch* scratch) const;

  const Vocabulary* vocabulary_;
  std::array<int32_t, 256> byte_ids_{};  // -1: no token, and no such byte in UTF-8
  std::vector<Merge> merges_;            // open addressing; a power of two, at most half full
  // Words that are one token in the end; most words of a text are, so that this spares the merging.
  std::unordered_map<std::string_view, TokenId> whole_;
};

}  // namespace fathom
