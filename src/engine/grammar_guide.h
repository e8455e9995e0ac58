// Keeps a request's answer to its grammar: its tokens in, the next one's mask out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/messages.h"
#include "grammar/grammar.h"
#include "grammar/grammar_pace.h"

namespace fathom {

class GrammarGuide {
 public:
  // REQUIRES: the request has a grammar.
  static Result<GrammarGuide> Start(const GenerateRequest& request, int32_t vocab_size);

  // The answer's next token. An error ends the request: nothing is asked of this any more.
  Status Take(TokenId token);

  // Makes the masks of what may follow each of these, which are guesses at the next tokens, up to
  // the first that is forbidden or that nothing can follow: nothing behind that one will stand.
  // Errors as Take(), of work and memory.
  Status Foresee(std::span<const TokenId> drafts);

  AnswerPace& pace() { return pace_; }

  // Of all choices of a request the same one.
  const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }

  // What may come next (base/token_mask.h), and behind each draft that was foreseen. Before the
  // grammar begins that is all but the end.
  const std::vector<uint32_t>& masks() const { return masks_; }

 private:
  GrammarGuide(std::unique_ptr<GrammarState> state, const GenerateRequest& request,
               int32_t vocab_size);
  // The mask of the state as it is, behind the others.
  Status AppendMask();

  AnswerPace pace_;
  std::shared_ptr<const Grammar> grammar_;
  std::unique_ptr<GrammarState> state_;
  std::optional<TokenId> begins_after_;     // it has not begun
  std::vector<uint32_t> before_it_begins_;  // the mask
  std::vector<uint32_t> masks_;
};

}  // namespace fathom
