// What an answer must look like: a compiled grammar, and how far an answer under it has come.
// Tokens in, bits out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/status.h"
#include "base/token_mask.h"

namespace fathom {

// What one answer may hold: it is copied as it grows, in one token's time.
inline constexpr size_t kMostAnswerBytes = size_t{64} << 20;

// How far one answer has come. An error is a fault of the grammar's, after which nothing more is
// asked of the state. THREAD: one at a time.
class GrammarState {
 public:
  virtual ~GrammarState() = default;
  // The answer's next token. False: the grammar forbids it, and the state is as before.
  virtual Result<bool> Accept(TokenId token) = 0;
  // What may come next (base/token_mask.h): an end-of-text token where the answer may end.
  // kNotFound if nothing may. REQUIRES: MaskWords() of the vocabulary; not terminated().
  virtual Status FillMask(std::span<uint32_t> words) = 0;
  virtual bool terminated() const = 0;  // an end-of-text token was accepted
  // As if the last so many tokens had not been accepted. REQUIRES: so many were; at most 32.
  virtual Status Rollback(int32_t tokens) = 0;
};

// Immutable. THREAD: any.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual Result<std::unique_ptr<GrammarState>> Start() const = 0;
  virtual size_t bytes() const = 0;  // of memory, roughly
};

}  // namespace fathom
