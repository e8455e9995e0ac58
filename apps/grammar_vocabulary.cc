#include "grammar_vocabulary.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "chat/output_parser.h"

namespace fathom {

// Special tokens belong to no grammar. The markers of an answer's parts do, as tokens alone: with a
// byte before them that no text has, no grammar of text leads to them.
GrammarVocabulary VocabularyOf(const LoadedEngine& loaded) {
  GrammarVocabulary vocabulary{.eos = loaded.eos,
                               .size = static_cast<int32_t>(loaded.config.vocab_size)};
  const int32_t tokens = std::min(loaded.tokenizer->vocab_size(), vocabulary.size);
  for (int32_t id = 0; id < tokens; ++id) {
    const bool special = loaded.tokenizer->IsSpecial(TokenId{id});
    vocabulary.tokens.push_back(special ? "" : loaded.tokenizer->TokenBytes(TokenId{id}));
  }
  for (const std::string_view marker : OutputMarkers(/*parse_tools=*/true)) {
    const std::optional<TokenId> id = loaded.tokenizer->IdOf(marker);
    if (id && Raw(*id) < tokens) {
      vocabulary.tokens[static_cast<size_t>(Raw(*id))] = "\xff" + std::string(marker);
    }
  }
  return vocabulary;
}

}  // namespace fathom
