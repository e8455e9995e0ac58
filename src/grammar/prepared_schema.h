// Schemas as xgrammar takes them: with the same valid answers, in fewer words.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

// `text`, a schema that CheckSchema() takes or a structural tag of such, in which
// - patterns are ASCII, since xgrammar makes no automaton of others inside JSON, and what it makes
//   instead takes quotes and line ends too;
// - oneOf is anyOf, since its branches do not overlap, which xgrammar asks for in a stricter sense;
// - what `required` names beside `properties` is one of these;
// - if `strict`, an object or a list of which nothing is named says that it has no others.
//   xgrammar takes {"type": "object"} and {} for open, however strict.
std::string PreparedSchema(std::string_view text, bool strict);

}  // namespace fathom
