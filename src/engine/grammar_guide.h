// Keeps a request's answer to its grammar: its tokens in, the next one's mask out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "cpu/thread_pool.h"
#include "engine/executor.h"
#include "engine/messages.h"
#include "grammar/grammar.h"
#include "grammar/grammar_pace.h"

namespace fathom {

class GrammarGuide {
 public:
  // REQUIRES: the request has a grammar.
  static Result<GrammarGuide> Start(const GenerateRequest& request, int32_t vocab_size);

  // The answer's next token. An error ends the request: nothing is asked of this any more. One that
  // took too long is an error: no other request may wait for a grammar that is slow on purpose.
  Status Take(TokenId token);

  // Makes the masks of what may follow each of these, which are guesses at the next tokens, up to
  // the first that is forbidden: nothing that follows that one will stand. Errors as Take().
  Status Foresee(std::span<const TokenId> drafts);

  // What may come next (base/token_mask.h), and behind each draft that was foreseen. Before the
  // grammar begins that is all but the end.
  const std::vector<uint32_t>& masks() const { return masks_; }

 private:
  GrammarGuide(std::unique_ptr<GrammarState> state, const GenerateRequest& request,
               int32_t vocab_size);
  Status Follow(TokenId token);
  Status FollowDrafts(std::span<const TokenId> drafts);
  // The mask of the state as it is, behind the others.
  Status AppendMask();

  std::unique_ptr<GrammarState> state_;
  std::optional<TokenId> begins_after_;     // it has not begun
  std::vector<uint32_t> before_it_begins_;  // the mask
  std::vector<uint32_t> masks_;
  int64_t spare_ns_ = kSparePaceNs;
};

// What a request's row brought, to be taken by its guide.
struct GuidedRow {
  GrammarGuide* guide = nullptr;
  RowResult* result = nullptr;  // cut before a token that fails, with its error
};

// Has guides take what their rows brought, several at a time. Which thread makes which mask changes
// no bit of it.
class GrammarWorkers {
 public:
  void Follow(const std::vector<GuidedRow>& rows);

 private:
  std::unique_ptr<ThreadPool> pool_;  // made when two rows come together
};

}  // namespace fathom
