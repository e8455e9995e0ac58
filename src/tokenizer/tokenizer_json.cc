// tokenizer.json: the model and its tokens. The steps around it are in pipeline_json.cc.
#include <boost/json.hpp>

#include "tokenizer/json_at.h"
#include "tokenizer/pipeline_json.h"
#include "tokenizer/tokenizer_parts.h"

namespace fathom {
namespace json = boost::json;
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr int64_t kMaxTokenId = (1 << 20) - 1;
constexpr size_t kMaxAddedTokenBytes = 1024;

std::string_view View(const json::string& text) {
  return {text.data(), text.size()};
}

Status RefuseUnlessAbsent(const JsonAt& at, std::string_view empty = "") {
  if (!at.present() || (at.value().is_string() && View(at.value().get_string()) == empty)) {
    return {};
  }
  return Unimplemented("{} is set, which is not supported: only byte-level BPE without it is",
                       at.path());
}

// Options of the model that would change its tokens.
Status CheckModelOptions(const JsonAt& model) {
  const std::string_view type = TRY(model["type"].String());
  if (type != "BPE") {
    return Unimplemented("{} '{}' is not supported: only byte-level 'BPE' is", model["type"].path(),
                         type);
  }
  if (TRY(model["byte_fallback"].Bool(false))) {
    return Unimplemented(
        "{} is true, which is not supported: only byte-level BPE is, which never falls back",
        model["byte_fallback"].path());
  }
  TRY(RefuseUnlessAbsent(model["continuing_subword_prefix"]));
  TRY(RefuseUnlessAbsent(model["end_of_word_suffix"]));
  const JsonAt dropout = model["dropout"];
  if (dropout.present() &&
      !(dropout.value().is_number() && dropout.value().to_number<double>() == 0)) {
    return Unimplemented("{} is set, which makes tokens random: set it to null", dropout.path());
  }
  return {};
}

Status ReadVocabulary(const JsonAt& at, Vocabulary* vocabulary) {
  for (const auto& [key, value] : *TRY(at.Object())) {
    const std::string_view spelling(key.data(), key.size());
    if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > kMaxTokenId) {
      return InvalidArgument("{}: the id of '{}' should be an integer from 0 to {}", at.path(),
                             spelling, kMaxTokenId);
    }
    const auto id = static_cast<int32_t>(value.get_int64());
    if (!vocabulary->Add(spelling, TokenId{id}, /*of_model=*/true)) {
      return InvalidArgument("{}: id {} of '{}' is taken by another token", at.path(), id,
                             spelling);
    }
  }
  return {};
}

// "a b" or ["a", "b"].
Result<std::pair<std::string_view, std::string_view>> PairOf(const json::value& merge,
                                                             const std::string& path) {
  if (const json::array* pair = merge.if_array()) {
    if (pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string()) {
      return std::pair(View((*pair)[0].get_string()), View((*pair)[1].get_string()));
    }
  } else if (const json::string* line = merge.if_string()) {
    const std::string_view text = View(*line);
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return InvalidArgument("{} should be \"left right\" or [\"left\", \"right\"]", path);
}

Result<std::vector<MergeRule>> ReadMerges(const JsonAt& at, const Vocabulary& vocabulary) {
  if (!at.present() || !at.value().is_array()) {
    return InvalidArgument("{} should be an array of merges", at.path());
  }
  std::vector<MergeRule> rules;
  size_t index = 0;
  for (const json::value& merge : at.value().get_array()) {
    const std::string path = fmt::format("{}[{}]", at.path(), index++);
    if (merge.is_string() && merge.get_string().starts_with("#version")) continue;
    const auto [left, right] = TRY(PairOf(merge, path));
    MergeRule rule;
    std::string merged(left);
    merged += right;
    for (const auto& [spelling, id] : {std::pair<std::string_view, TokenId*>{left, &rule.left},
                                       {right, &rule.right},
                                       {merged, &rule.merged}}) {
      const std::optional<TokenId> found = vocabulary.Find(spelling);
      if (!found) {
        return InvalidArgument("{}: '{}' is not in model.vocab; fetch the file again", path,
                               spelling);
      }
      *id = *found;
    }
    rules.push_back(rule);
  }
  return rules;
}

Result<AddedToken> ReadAddedToken(const JsonAt& at) {
  AddedToken token;
  token.content = TRY(at["content"].String());
  if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
    return InvalidArgument("{} should have 1 to {} bytes", at["content"].path(),
                           kMaxAddedTokenBytes);
  }
  const int64_t id = TRY(at["id"].Integer());
  if (id < 0 || id > kMaxTokenId) {
    return InvalidArgument("{} should be from 0 to {}", at["id"].path(), kMaxTokenId);
  }
  token.id = TokenId{static_cast<int32_t>(id)};
  token.special = TRY(at["special"].Bool(false));
  token.single_word = TRY(at["single_word"].Bool(false));
  token.lstrip = TRY(at["lstrip"].Bool(false));
  token.rstrip = TRY(at["rstrip"].Bool(false));
  token.normalized = TRY(at["normalized"].Bool(!token.special));
  return token;
}

// Hugging Face numbers added tokens itself: those of the vocabulary keep their ids, the others
// follow in order. A file that says otherwise would give other tokens there.
Status ReadAddedTokens(const JsonAt& at, int64_t model_tokens, TokenizerParts* parts) {
  if (!at.present()) return {};
  int64_t next = model_tokens;
  for (const JsonAt& item : TRY(at.Array())) {
    AddedToken token = TRY(ReadAddedToken(item));
    const std::optional<TokenId> known = parts->vocabulary.Find(token.content);
    const int64_t expected = known ? Raw(*known) : next;
    if (Raw(token.id) != expected) {
      return InvalidArgument(
          "{}: '{}' has id {}, but Hugging Face tokenizers would give it {}: save the file again "
          "with that library",
          item.path(), token.content, Raw(token.id), expected);
    }
    if (parts->vocabulary[token.id].added) {
      return InvalidArgument("{}: '{}' is listed twice; remove one", item.path(), token.content);
    }
    if (!known && !parts->vocabulary.Add(token.content, token.id, /*of_model=*/false)) {
      return InvalidArgument("{}: id {} is taken by a token of model.vocab", item.path(),
                             Raw(token.id));
    }
    parts->vocabulary.MarkAdded(token.id, token.special);
    next = std::max<int64_t>(next, Raw(token.id) + 1);
    parts->added.push_back(std::move(token));
  }
  return {};
}

}  // namespace

Status ReadTokenizerJson(const std::string& path, TokenizerParts* parts) {
  const Result<json::value> document = ReadJsonFile(path, kMaxFileBytes);
  if (document.status().code() == StatusCode::kNotFound) {
    return document.status().WithContext(
        "a model folder needs a tokenizer.json; fetch it, or write it with save_pretrained of "
        "transformers' fast tokenizer");
  }
  if (!document.ok()) return document.status();
  const JsonAt root(&*document, path + ":");
  const JsonAt model = root["model"];
  TRY(root.Object());
  TRY(model.Object());
  TRY(CheckModelOptions(model));
  TRY(ReadVocabulary(model["vocab"], &parts->vocabulary));
  const int64_t model_tokens = static_cast<int64_t>(TRY(model["vocab"].Object())->size());
  const std::vector<MergeRule> rules = TRY(ReadMerges(model["merges"], parts->vocabulary));
  TRY(ReadAddedTokens(root["added_tokens"], model_tokens, parts));
  const bool ignore_merges = TRY(model["ignore_merges"].Bool(false));
  Result<Bpe> bpe = Bpe::Build(parts->vocabulary, rules, ignore_merges);
  if (!bpe.ok()) return bpe.status().WithContext(model["vocab"].path());
  parts->bpe = *std::move(bpe);
  parts->added_tokens.emplace(parts->added);
  TRY(CheckNormalizer(root["normalizer"]));
  TRY(CheckDecoder(root["decoder"]));
  TRY(ReadPreTokenizer(root["pre_tokenizer"], &parts->pre_tokenizer));
  return ReadPostProcessor(root["post_processor"], parts);
}

}  // namespace fathom
