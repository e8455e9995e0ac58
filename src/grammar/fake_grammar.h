// A grammar for tests of who holds what.
#pragma once

#include <memory>

#include "grammar/grammar.h"

namespace fathom {

// Of so many bytes; it is never started.
class FakeGrammar final : public Grammar {
 public:
  explicit FakeGrammar(size_t bytes) : bytes_(bytes) {}
  Result<std::unique_ptr<GrammarState>> Start() const override { return Internal("a fake"); }
  size_t bytes() const override { return bytes_; }

 private:
  const size_t bytes_;
};

inline std::shared_ptr<const Grammar> OfBytes(size_t bytes) {
  return std::make_shared<FakeGrammar>(bytes);
}

}  // namespace fathom
