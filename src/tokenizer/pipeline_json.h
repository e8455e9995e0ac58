// The steps of tokenizer.json around the model.
#pragma once

#include "base/status.h"
#include "tokenizer/json_at.h"
#include "tokenizer/tokenizer_parts.h"

namespace fathom {

// None, or an empty sequence. Anything else is refused by name.
Status CheckNormalizer(const JsonAt& at);

// ByteLevel only.
Status CheckDecoder(const JsonAt& at);

// Sequence, Split, Digits and a ByteLevel at the end.
Status ReadPreTokenizer(const JsonAt& at, PreTokenizer* pre_tokenizer);

// Sequence, ByteLevel (which changes offsets only) and TemplateProcessing: sets prefix and suffix.
Status ReadPostProcessor(const JsonAt& at, TokenizerParts* parts);

}  // namespace fathom
