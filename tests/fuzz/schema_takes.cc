// JSON schemas as a filter, for comparing what is taken with what others say.
//
//   schema_takes < lines
//
// Each line of standard input is {"schema": text, "strict": true, "instance": text}, each line of
// standard output "taken", "not taken", or "refused: " and why the schema is.
#include <boost/json.hpp>
#include <iostream>

#include "grammar/byte_vocabulary.h"
#include "grammar/grammar_limits.h"
#include "grammar/xgrammar_adapter.h"

namespace fathom {
namespace {

namespace json = boost::json;

Result<bool> Answer(const GrammarCompiler::Compile& compile, const json::value& line) {
  const GrammarSpec spec{.kind = GrammarKind::kJsonSchema,
                         .text = std::string(line.at("schema").as_string()),
                         .strict = line.at("strict").as_bool()};
  TRY(CheckGrammar(spec));
  const std::shared_ptr<const Grammar> grammar = TRY(compile(spec));
  return TakesBytes(*grammar, line.at("instance").as_string());
}

}  // namespace
}  // namespace fathom

int main() {
  const auto compile = fathom::MakeXgrammarCompile(fathom::ByteVocabulary());
  for (std::string line; std::getline(std::cin, line);) {
    const auto taken = fathom::Answer(compile, boost::json::parse(line));
    if (taken.ok()) {
      std::cout << (*taken ? "taken" : "not taken") << std::endl;
    } else {
      std::cout << "refused: " << taken.status().message() << std::endl;
    }
  }
}
