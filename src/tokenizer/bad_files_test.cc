// Every bad folder is refused with a sentence that says what is wrong and where.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "tokenizer/test_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace fathom {
namespace {

std::string LoadError(const TestFolder& folder) {
  const auto tokenizer = Tokenizer::Load(folder.path());
  return tokenizer.ok() ? "loaded" : tokenizer.status().ToString();
}

void ExpectContains(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  }
}

// One field of an otherwise good tokenizer.json replaced.
void ExpectRefused(std::string TokenizerFields::*field, const std::string& text,
                   const std::vector<std::string>& words) {
  TokenizerFields fields;
  fields.*field = text;
  ExpectContains(LoadError(TokenizerFolder(fields)), words);
}

using Fields = TokenizerFields;

TEST(BadFiles, TheTestFolderItselfLoads) {
  EXPECT_EQ(LoadError(TokenizerFolder(Fields())), "loaded");
}

TEST(BadFiles, NotThereOrNotJson) {
  const TestFolder folder;
  ExpectContains(LoadError(folder), {"not found", "save_pretrained", "tokenizer.json"});
  folder.Write("tokenizer.json", R"({"model": )");
  ExpectContains(LoadError(folder), {"tokenizer.json is not valid JSON", "fetch the file again"});
  folder.Write("tokenizer.json", R"({"model": "\ud800"})");
  ExpectContains(LoadError(folder), {"not valid JSON"});
  folder.Write("tokenizer.json", R"({} {})");
  ExpectContains(LoadError(folder), {"not valid JSON"});
  folder.Write("tokenizer.json", std::string(100000, '['));
  ExpectContains(LoadError(folder), {"not valid JSON", "too deep"});
  folder.Write("tokenizer.json", "[]");
  ExpectContains(LoadError(folder), {"tokenizer.json: should be an object, but is an array"});
  folder.Write("tokenizer.json", "{}");
  ExpectContains(LoadError(folder), {"tokenizer.json: model should be an object, but is absent"});
  folder.Write("tokenizer.json", std::string((64 << 20) + 1, ' '));
  ExpectContains(LoadError(folder), {"resource exhausted", "at most 67108864"});
}

TEST(BadFiles, Model) {
  ExpectRefused(&Fields::type, R"("Unigram")",
                {"not supported: ", "model.type 'Unigram'", "'BPE'"});
  ExpectRefused(&Fields::type, "3", {"model.type should be a string, but is a number"});
  const auto option = [](const std::string& text, const std::vector<std::string>& words) {
    ExpectRefused(&Fields::more_of_model, ", " + text, words);
  };
  option(R"("byte_fallback": true)", {"not supported: ", "byte_fallback"});
  option(R"("continuing_subword_prefix": "##")", {"not supported: ", "continuing_subword_prefix"});
  option(R"("end_of_word_suffix": "</w>")", {"not supported: ", "end_of_word_suffix"});
  option(R"("dropout": 0.1)", {"not supported: ", "dropout", "set it to null"});
  option(R"("ignore_merges": 1)", {"ignore_merges should be true or false"});
  option(R"("byte_fallback": null, "continuing_subword_prefix": "", "dropout": 0.0)", {"loaded"});
  Fields fields;
  fields.vocab = R"({"a": 0})", fields.merges = "[]", fields.added_tokens = "[]";
  ExpectContains(LoadError(TokenizerFolder(fields)), {"model.vocab: ", "no token for byte 0x00"});
  ExpectRefused(&Fields::vocab, R"({"a": 0, "b": 0})", {"id 0", "taken"});
  ExpectRefused(&Fields::vocab, R"({"a": -1})", {"id of 'a'", "from 0 to"});
  ExpectRefused(&Fields::vocab, R"({"a": 99999999})", {"id of 'a'", "from 0 to"});
  ExpectRefused(&Fields::vocab, R"({"a": 1.5})", {"id of 'a'", "integer"});
  ExpectRefused(&Fields::vocab, "null", {"model.vocab should be an object, but is absent"});
}

TEST(BadFiles, Merges) {
  ExpectRefused(&Fields::merges, R"(["a b", "a c"])", {"merges[1]", "'ac' is not in model.vocab"});
  ExpectRefused(&Fields::merges, R"([["zz", "b"]])", {"merges[0]", "'zz'"});
  for (const char* merge : {R"(["ab"])", R"(["a b c"])", R"([["a"]])", R"([["a", 1]])", "[7]"}) {
    ExpectRefused(&Fields::merges, merge, {"merges[0] should be"});
  }
  ExpectRefused(&Fields::merges, R"("a b")", {"merges should be an array"});
}

TEST(BadFiles, AddedTokens) {
  const auto refused = [](const std::string& tokens, const std::vector<std::string>& words) {
    ExpectRefused(&Fields::added_tokens, "[" + tokens + "]", words);
  };
  refused(AddedTokenJson(300, "<s>"), {"added_tokens[0]", "id 300", "would give it 261"});
  refused(AddedTokenJson(261, "ab"), {"'ab' has id 261", "would give it 256"});
  refused(AddedTokenJson(261, "<s>") + "," + AddedTokenJson(261, "<s>"), {"listed twice"});
  refused(AddedTokenJson(261, ""), {"added_tokens[0].content", "1 to 1024 bytes"});
  refused(AddedTokenJson(261, std::string(1025, 'x')), {"1 to 1024 bytes"});
  refused(AddedTokenJson(-1, "x"), {"added_tokens[0].id"});
  refused(AddedTokenJson(261, "x", R"(, "lstrip": "yes")"), {"lstrip should be true or false"});
  refused("5", {"added_tokens[0].content should be a string, but is absent"});
}

TEST(BadFiles, ComponentsAreRefusedByName) {
  ExpectRefused(&Fields::normalizer, R"({"type": "NFC"})", {"not supported: ", "normaliser 'NFC'"});
  ExpectRefused(&Fields::normalizer, R"({"type": "Sequence", "normalizers": [{"type": "Strip"}]})",
                {"normalizer.normalizers[0]", "'Strip'"});
  ExpectRefused(&Fields::normalizer, R"({"type": "Sequence", "normalizers": []})", {"loaded"});
  ExpectRefused(&Fields::decoder, "null", {"decoder is absent", "ByteLevel"});
  ExpectRefused(&Fields::decoder, R"({"type": "Metaspace"})", {"decoder 'Metaspace'"});
  ExpectRefused(&Fields::post_processor, R"({"type": "BertProcessing"})",
                {"post-processor 'BertProcessing'", "TemplateProcessing"});
}

TEST(BadFiles, PreTokenizers) {
  const auto refused = [](const std::string& step, const std::vector<std::string>& words) {
    ExpectRefused(
        &Fields::pre_tokenizer,
        R"({"type": "Sequence", "pretokenizers": [)" + step + R"(, {"type": "ByteLevel"}]})",
        words);
  };
  refused(R"({"type": "Metaspace"})", {"pretokenizers[0]", "'Metaspace'", "Digits"});
  refused(R"({"type": "ByteLevel"})", {"pretokenizers[1]", "ByteLevel comes last"});
  refused(R"({"type": "Split", "pattern": {"Regex": "a("}, "behavior": "Isolated"})",
          {"pattern", "'a('", "does not compile"});
  refused(R"({"type": "Split", "pattern": {"Regex": "\\h"}, "behavior": "Isolated"})",
          {"not supported: ", "\\h"});
  refused(R"({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated"})",
          {"pattern is empty"});
  refused(R"({"type": "Split", "pattern": "x", "behavior": "Isolated"})", {"pattern should be"});
  refused(R"({"type": "Split", "pattern": {"String": "x"}, "behavior": "Shuffled"})",
          {"behaviour 'Shuffled'", "MergedWithNext"});
  refused(R"({"type": "Split", "pattern": {"String": "x"}})", {"behavior should be a string"});
  refused(R"({"type": 1})", {"type should be a string"});
  ExpectRefused(&Fields::pre_tokenizer, "null", {"pre_tokenizer has no 'ByteLevel'"});
  ExpectRefused(&Fields::pre_tokenizer, R"({"type": "Sequence"})",
                {"pre_tokenizer.pretokenizers should be an array, but is absent"});
}

TEST(BadFiles, Templates) {
  const auto refused = [](const std::string& pieces, const std::vector<std::string>& words) {
    ExpectRefused(
        &Fields::post_processor,
        R"({"type": "TemplateProcessing", "special_tokens": {"x": {"ids": [999]}}, "single": )" +
            pieces + "}",
        words);
  };
  refused(R"([{"SpecialToken": {"id": "x"}}])", {"ids[0] is 999", "no token"});
  refused(R"([{"SpecialToken": {"id": "y"}}])", {"special_tokens.y.ids should be an array"});
  refused("[]", {"single lacks the Sequence 'A'"});
  refused(R"([{"Sequence": {"id": "B"}}])", {"single[0]", "'A'"});
  refused(R"([{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}])", {"single[1]"});
}

TEST(BadFiles, TokenizerConfig) {
  const TokenizerFolder folder{Fields()};
  const auto refused = [&](std::string_view config, const std::vector<std::string>& words) {
    folder.Write("tokenizer_config.json", config);
    ExpectContains(LoadError(folder), words);
  };
  refused("{", {"tokenizer_config.json is not valid JSON"});
  refused("[]", {"tokenizer_config.json: should be an object"});
  refused(R"({"bos_token": "<bos>"})", {"bos_token '<bos>'", "not among the added_tokens"});
  refused(R"({"eos_token": "ab"})", {"eos_token 'ab'", "not among the added_tokens"});
  refused(R"({"eos_token": {"id": 3}})", {"eos_token.content should be a string"});
  refused(R"({"tokenizer_class": "BertTokenizer"})", {"tokenizer_class 'BertTokenizer'"});
  refused(R"({"tokenizer_class": "LlamaTokenizerFast"})", {"add_bos_token", "set bos_token"});
  refused(R"({"add_bos_token": "yes"})", {"add_bos_token should be true or false"});
  refused(R"({"chat_template": 3})", {"chat_template should be a string"});
  refused(R"({"chat_template": ")" + std::string((1 << 20) + 1, 'x') + R"("})",
          {"chat_template is longer than 1048576 bytes"});
  refused(R"({"added_tokens_decoder": {"262": {"content": "<s>", "special": true}}})",
          {"added_tokens_decoder.262", "'<s>' differs"});
  refused(
      R"({"added_tokens_decoder": {"261": {"content": "<s>", "special": true, "lstrip": true}}})",
      {"'<s>' differs", "save both files again"});
  refused("{}", {"loaded"});
  folder.Write("chat_template.jinja", "\xFF");
  ExpectContains(LoadError(folder), {"chat_template.jinja is not UTF-8"});
}

// Bytes changed, dropped and doubled at random: a folder loads and works, or is refused by name.
TEST(BadFiles, NoDamageCrashes) {
  Fields fields;
  fields.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern":
      {"Regex": "[a-c]{1,3}|\\s+(?!\\S)|\\p{L}"}, "behavior": "Isolated", "invert": false},
      {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel"}]})";
  const std::string good = fields.Json();
  // Half of the damage goes to what is not vocabulary.
  const size_t head = good.find("\"vocab\""), tail = good.find("\"abc\"");
  const TestFolder folder;
  Rng rng(11);
  int loaded = 0;
  for (int round = 0; round < 500; ++round) {
    std::string json = good;
    for (uint32_t edits = 1 + rng.Below(3); edits > 0; --edits) {
      size_t at = rng.Below(json.size());
      if (rng.Below(2) && at > head && at < tail) at = rng.Below(head);
      switch (rng.Below(4)) {
        case 0: json.erase(at, 1 + rng.Below(8)); break;
        case 1: json[at] = static_cast<char>(rng.Below(256)); break;
        case 2: json[at] = "0129{}[]\",:\\"[rng.Below(12)]; break;
        default: json.insert(at, json.substr(at, 1 + rng.Below(8))); break;
      }
    }
    folder.Write("tokenizer.json", json);
    const auto tokenizer = Tokenizer::Load(folder.path());
    if (!tokenizer.ok()) {
      ExpectContains(tokenizer.status().message(), {folder.path() + "/tokenizer.json"});
      continue;
    }
    ++loaded;
    const auto ids = (*tokenizer)->Encode("ab abc 12 <s>é", true);
    if (!ids.ok()) continue;
    EXPECT_FALSE((*tokenizer)->Decode(*ids, false).empty());
  }
  EXPECT_GT(loaded, 20);
}

}  // namespace
}  // namespace fathom
