// Scheduler: pages that requests with equal beginnings share.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace fathom {

PrefixChain Scheduler::ChainOf(const RequestParams& params, const std::string& cache_salt) const {
  PrefixChain chain;
  if (!options_.prefix_caching) return chain;
  PrefixScope scope = options_.prefix_scope;
  scope.salt = cache_salt;
  chain.scope = scope.Key();
  const std::span prompt(params.prompt);
  const auto prompt_end = static_cast<int64_t>(prompt.size());
  for (int64_t begin = 0; begin + kPageTokens <= prompt_end; begin += kPageTokens) {
    PrefixPage& page = chain.pages.emplace_back();
    page.tokens = prompt.subspan(static_cast<size_t>(begin), kPageTokens);
    for (int64_t i = 0; !options_.reuse_decoded && i < kPageTokens; ++i) {
      const AttentionForm form =
          FormOfToken(begin + i, prompt_end, options_.prefill_chunk, options_.absorbed_limit);
      page.expanded |= uint64_t{form == AttentionForm::kExpanded} << i;
    }
  }
  chain.MakeKeys(options_.prefix_hash);
  return chain;
}

// The pages that what was generated has filled: their tokens are computed, and the token behind
// each is known.
void Scheduler::ExtendChain(Sequence& seq) const {
  PrefixChain& chain = seq.prefix;
  for (int32_t begin = chain.size() * kPageTokens; begin + kPageTokens < seq.length();
       begin += kPageTokens) {
    std::array<TokenId, kPageTokens>& tokens = seq.decoded_pages.emplace_back();
    for (int32_t i = 0; i < kPageTokens; ++i) tokens[static_cast<size_t>(i)] = seq.token(begin + i);
    PrefixPage& page = chain.pages.emplace_back(PrefixPage{.tokens = tokens});
    chain.MakeKey(chain.size() - 1, options_.prefix_hash);
  }
}

bool Scheduler::Awaits(const Sequence& seq) const {
  return seq.awaited_group >= 0 &&
         groups_[static_cast<size_t>(seq.awaited_group)].promised.contains(seq.awaited);
}

// The pages of what is known of it: those that are there, and others that it promises to publish.
void Scheduler::TakePages(const Entrance& entrance, Sequence& seq) {
  Group& group = *entrance.group;
  group.index.Hold(seq.prefix, entrance.cached, seq.pages);
  const int32_t own = PagesOf(seq, seq.prefill_end) - entrance.cached;
  const bool allocated = group.pool.Allocate(own, seq.pages);
  CHECK(allocated, "{} pages for request {}", own, Raw(seq.id));
  seq.awaited_group = -1;
  seq.published = entrance.cached;
  seq.publishes = true;
  for (int32_t at = seq.published; at < seq.prefix.size(); ++at) {
    group.promised.emplace(seq.prefix.pages[static_cast<size_t>(at)].key, &seq);
  }
  seq.prefilled = entrance.cached * kPageTokens;
  seq.prompt_planned = std::max(seq.prompt_planned, seq.prefilled);
  if (seq.cached_tokens >= 0) return;  // it was preempted
  seq.cached_tokens = seq.prefilled;
  if (!options_.prefix_caching || seq.params->prompt_logprobs >= 0) return;
  prefix_queries_ += seq.prompt_size();
  prefix_hits_ += seq.cached_tokens;
}

// The first `written` positions are in its pages for good.
void Scheduler::Publish(Sequence& seq, int32_t written) {
  Group& group = GroupOf(seq);
  const int32_t full = std::min(seq.prefix.size(), written / kPageTokens);
  while (seq.publishes && seq.published < full) {
    if (!group.index.Publish(seq.prefix, seq.published, seq.pages)) {
      WithdrawPromises(seq);  // another request has published the same, or all was forgotten
      seq.publishes = false;
      return;
    }
    const PrefixKey& key = seq.prefix.pages[static_cast<size_t>(seq.published++)].key;
    const auto promise = group.promised.find(key);
    if (promise != group.promised.end() && promise->second == &seq) group.promised.erase(promise);
  }
}

// Who waits for its pages looks elsewhere, or computes them.
void Scheduler::WithdrawPromises(Sequence& seq) {
  Group& group = GroupOf(seq);
  for (int32_t at = seq.published; at < seq.prefix.size(); ++at) {
    const auto promise = group.promised.find(seq.prefix.pages[static_cast<size_t>(at)].key);
    if (promise != group.promised.end() && promise->second == &seq) group.promised.erase(promise);
  }
}

void Scheduler::ResetPrefixCache() {
  for (Group& group : groups_) {
    group.index.Clear();
    for (Sequence* seq : group.running) {
      if (seq->published == 0) continue;
      WithdrawPromises(*seq);
      seq->publishes = false;
    }
  }
}

// Only a page with one reference is ever written: neither one that another request reads, nor one
// that the index has. `row` is the next one of `seq`.
void Scheduler::CheckWritable(const Group& group, const Sequence& seq, const StepRow& row) {
  const int32_t begin = row.is_decode() ? seq.planned_least() : row.begin;
  const int32_t last = row.is_decode() ? static_cast<int32_t>(seq.pages.size()) - 1
                                       : (row.begin + row.num_tokens() - 1) / kPageTokens;
  for (int32_t at = begin / kPageTokens; at <= last; ++at) {
    const PageId page = seq.pages[static_cast<size_t>(at)].id();
    CHECK(group.pool.references(page) == 1,
          "request {} would write page {}, its page {}, which has {} references", Raw(seq.id),
          Raw(page), at, group.pool.references(page));
  }
}

}  // namespace fathom
