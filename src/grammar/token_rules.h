// Which tokens an answer may hold, whatever it says: a grammar that knows tokens alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "grammar/grammar.h"

namespace fathom {

struct TokenRules {
  std::vector<TokenId> allowed;  // none of the others, stop tokens among them; empty: all
  std::vector<std::vector<TokenId>> banned;  // runs of tokens that no answer holds; none is empty
};

// REQUIRES: tokens of the vocabulary. An answer ends behind one of `stop`.
std::shared_ptr<const Grammar> MakeTokenGrammar(TokenRules rules, std::vector<TokenId> stop,
                                                int32_t vocab_size);

}  // namespace fathom
