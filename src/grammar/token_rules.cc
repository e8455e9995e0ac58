#include "grammar/token_rules.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

bool Holds(std::span<const uint32_t> words, TokenId token) {
  const auto id = static_cast<uint32_t>(Raw(token));
  return (words[id / 32] >> (id % 32) & 1) != 0;
}

void Set(std::span<uint32_t> words, TokenId token, bool value) {
  const auto id = static_cast<uint32_t>(Raw(token));
  const uint32_t bit = 1U << (id % 32);
  words[id / 32] = value ? words[id / 32] | bit : words[id / 32] & ~bit;
}

struct Rules {
  std::vector<uint32_t> mask;                // of what is never banned and never left out
  std::vector<std::vector<TokenId>> banned;  // of two tokens and more
  std::vector<TokenId> stop;
  size_t longest = 0;  // of `banned`
};

class TokenState final : public GrammarState {
 public:
  explicit TokenState(std::shared_ptr<const Rules> rules)
      : rules_(std::move(rules)), mask_(rules_->mask) {
    Mask();
  }

  Result<bool> Accept(TokenId token) override {
    if (!Holds(mask_, token)) return false;
    tokens_.push_back(token);
    Mask();
    return true;
  }

  Status Rollback(int32_t tokens) override {
    tokens_.resize(tokens_.size() - static_cast<size_t>(tokens));
    Mask();
    return {};
  }

  Status FillMask(std::span<uint32_t> words) override {
    if (std::all_of(mask_.begin(), mask_.end(), [](uint32_t word) { return word == 0; })) {
      return Internal("bad_words and allowed_token_ids leave no token that may come next");
    }
    std::copy(mask_.begin(), mask_.end(), words.begin());
    return {};
  }

  bool terminated() const override {
    const std::vector<TokenId>& stop = rules_->stop;
    return !tokens_.empty() && std::find(stop.begin(), stop.end(), tokens_.back()) != stop.end();
  }

 private:
  void Mask() {
    mask_ = rules_->mask;
    for (const std::vector<TokenId>& run : rules_->banned) {
      const size_t before = run.size() - 1;
      if (before > tokens_.size()) continue;
      if (std::equal(run.begin(), run.end() - 1, tokens_.end() - static_cast<ptrdiff_t>(before))) {
        Set(mask_, run.back(), false);
      }
    }
  }

  std::shared_ptr<const Rules> rules_;
  std::vector<TokenId> tokens_;  // of the answer
  std::vector<uint32_t> mask_;
};

class TokenGrammar final : public Grammar {
 public:
  explicit TokenGrammar(std::shared_ptr<const Rules> rules) : rules_(std::move(rules)) {}

  Result<std::unique_ptr<GrammarState>> Start() const override {
    return std::unique_ptr<GrammarState>(std::make_unique<TokenState>(rules_));
  }
  size_t bytes() const override {
    return rules_->mask.size() * sizeof(uint32_t) +
           rules_->banned.size() * rules_->longest * sizeof(TokenId);
  }

 private:
  std::shared_ptr<const Rules> rules_;
};

}  // namespace

std::shared_ptr<const Grammar> MakeTokenGrammar(TokenRules rules, std::vector<TokenId> stop,
                                                int32_t vocab_size) {
  Rules made{.mask = std::vector<uint32_t>(static_cast<size_t>(MaskWords(vocab_size)),
                                           rules.allowed.empty() ? ~0U : 0U),
             .stop = std::move(stop)};
  // Bits beyond the vocabulary are no tokens.
  for (int32_t id = vocab_size; id % 32 != 0; ++id) Set(made.mask, TokenId(id), false);
  for (const TokenId token : rules.allowed) Set(made.mask, token, true);
  for (std::vector<TokenId>& run : rules.banned) {
    CHECK(!run.empty(), "a banned run of no tokens");
    if (run.size() == 1) {
      Set(made.mask, run.front(), false);
      continue;
    }
    made.longest = std::max(made.longest, run.size());
    made.banned.push_back(std::move(run));
  }
  return std::make_shared<TokenGrammar>(std::make_shared<const Rules>(std::move(made)));
}

}  // namespace fathom
