// The tokenizer as a filter, for comparing it with another one: texts in, tokens out.
//
//   tokenize_lines FOLDER < texts
//
// Each line of standard input is a JSON string. For each, one line of JSON:
// {"ids": [without special tokens], "special": [with], "text": decoded, "skipped": decoded without
//  special tokens, "streamed": whether the incremental detokeniser gives both again}
// or {"error": message}.
#include <boost/json.hpp>
#include <iostream>

#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace fathom {
namespace {

namespace json = boost::json;

json::array Numbers(const std::vector<TokenId>& ids) {
  json::array numbers;
  for (const TokenId id : ids) numbers.push_back(Raw(id));
  return numbers;
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip) {
  Detokenizer detokenizer(tokenizer, skip);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Finish();
}

json::object Answer(const Tokenizer& tokenizer, std::string_view text) {
  const Result<std::vector<TokenId>> ids = tokenizer.Encode(text, false);
  if (!ids.ok()) return {{"error", ids.status().ToString()}};
  const Result<std::vector<TokenId>> special = tokenizer.Encode(text, true);
  if (!special.ok()) return {{"error", special.status().ToString()}};
  const std::string decoded = tokenizer.Decode(*special, false);
  const std::string skipped = tokenizer.Decode(*special, true);
  return {{"ids", Numbers(*ids)},
          {"special", Numbers(*special)},
          {"text", decoded},
          {"skipped", skipped},
          {"streamed", Stream(tokenizer, *special, false) == decoded &&
                           Stream(tokenizer, *special, true) == skipped}};
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_lines FOLDER < one JSON string per line\n";
    return 2;
  }
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().ToString() << "\n";
    return 1;
  }
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    boost::system::error_code error;
    const json::value text = json::parse(line, error);
    if (error || !text.is_string()) {
      std::cerr << "not a JSON string: " << line << "\n";
      return 2;
    }
    std::cout << json::serialize(Answer(**tokenizer, std::string_view(text.get_string()))) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) { return fathom::Main(argc, argv); }
