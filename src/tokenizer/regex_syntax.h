// The regular expressions of tokenizer.json, rewritten for PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

// `pattern` (Oniguruma, Ruby syntax, Unicode) as a PCRE2 pattern that matches the same under
// PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE with LF as newline. kUnimplemented, naming the
// construct, where the two differ in a way that is not translated.
Result<std::string> TranslateOniguruma(std::string_view pattern);

// A pattern that matches exactly `text`.
std::string EscapeRegex(std::string_view text);

}  // namespace fathom
