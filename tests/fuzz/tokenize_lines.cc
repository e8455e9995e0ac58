// The tokenizer as a filter, for comparing it with another one: texts in, tokens out.
//
//   tokenize_lines FOLDER < lines
//
// Each line of standard input is JSON, each line of standard output the answer to it.
// A string is encoded: {"ids": without special tokens, "special": with them, "untrusted": as a
// user's text in a chat}. An array of ids is decoded: {"text": all of it, "skipped": without
// special tokens}; {"error": message} if the incremental detokeniser gives something else, or on
// bad input.
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

Result<json::object> Encode(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<TokenId> ids = TRY(tokenizer.Encode(text, false));
  if (TRY(tokenizer.Encode(SpannedText(text, /*trusted=*/true))) != ids) {
    return Internal("a trusted text gives other tokens than a plain one");
  }
  return json::object{
      {"ids", Numbers(ids)},
      {"special", Numbers(TRY(tokenizer.Encode(text, true)))},
      {"untrusted", Numbers(TRY(tokenizer.Encode(SpannedText(text, /*trusted=*/false))))}};
}

Result<std::string> DecodeBothWays(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                                   bool skip) {
  Detokenizer detokenizer(tokenizer, skip);
  std::string streamed;
  for (const TokenId id : ids) streamed += detokenizer.Push(id);
  streamed += detokenizer.Finish();
  std::string text = tokenizer.Decode(ids, skip);
  if (streamed != text) return Internal("streamed '{}', decoded '{}'", streamed, text);
  return text;
}

Result<json::object> Answer(const Tokenizer& tokenizer, const json::value& question) {
  if (const json::string* text = question.if_string()) {
    return Encode(tokenizer, {text->data(), text->size()});
  }
  if (!question.is_array()) return InvalidArgument("neither a string nor an array");
  std::vector<TokenId> ids;
  for (const json::value& id : question.get_array()) {
    if (!id.is_int64()) return InvalidArgument("an id that is no number");
    ids.push_back(TokenId{static_cast<int32_t>(id.get_int64())});
  }
  return json::object{{"text", TRY(DecodeBothWays(tokenizer, ids, false))},
                      {"skipped", TRY(DecodeBothWays(tokenizer, ids, true))}};
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_lines FOLDER < one JSON string or array of ids per line\n";
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
    const json::value question = json::parse(line, error);
    const Result<json::object> answer =
        error ? Result<json::object>(InvalidArgument("not JSON")) : Answer(**tokenizer, question);
    std::cout << (answer.ok()
                      ? json::serialize(*answer)
                      : json::serialize(json::object{{"error", answer.status().ToString()}}))
              << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  return fathom::Main(argc, argv);
}
