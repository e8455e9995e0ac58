// For tests: a tokenizer folder on disk, small enough to reason about.
#pragma once

#include <string>
#include <string_view>

#include "base/test_folder.h"

namespace fathom {

// The fields of a tokenizer.json, each as JSON text. The vocabulary is the byte alphabet (id =
// byte), then "ab" 256, "abc" 257, "bc" 258, "Ġab" 259, and "aĠ" 260; the added token is "<s>" 261.
struct TokenizerFields {
  TokenizerFields();
  std::string Json() const;

  std::string type = R"("BPE")";
  std::string vocab;
  std::string merges = R"([["b", "c"], ["a", "b"], ["ab", "c"], ["Ġ", "ab"]])";
  std::string more_of_model;  // further members, each after a comma
  std::string added_tokens;
  std::string normalizer = "null";
  std::string pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false})";
  std::string post_processor = "null";
  std::string decoder = R"({"type": "ByteLevel"})";
};

// One entry of added_tokens; `flags` are further members, each after a comma.
std::string AddedTokenJson(int id, std::string_view content, std::string_view flags = "");

// A folder with such a tokenizer.json.
class TokenizerFolder : public TestFolder {
 public:
  explicit TokenizerFolder(const TokenizerFields& fields) {
    Write("tokenizer.json", fields.Json());
  }
};

}  // namespace fathom
