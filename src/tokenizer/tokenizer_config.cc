// tokenizer_config.json and chat_template.jinja.
#include <boost/json.hpp>
#include <filesystem>
#include <system_error>

#include "base/mmap.h"
#include "tokenizer/json_at.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace json = boost::json;
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// A string, or an object with "content".
Status ReadNamedToken(const JsonAt& at, const Vocabulary& vocabulary, std::string* text) {
  if (!at.present()) return {};
  *text = TRY((at.value().is_object() ? at["content"] : at).String());
  const std::optional<TokenId> id = vocabulary.Find(*text);
  if (!id || !vocabulary[*id].added) {
    return InvalidArgument(
        "{} '{}' is not among the added_tokens of tokenizer.json: correct it, "
        "or save both files again with transformers",
        at.path(), *text);
  }
  return {};
}

// transformers lets the entries of added_tokens_decoder override tokenizer.json.
Status CheckAddedTokens(const JsonAt& at, const std::vector<AddedToken>& added) {
  if (!at.present()) return {};
  for (const auto& [key, value] : *TRY(at.Object())) {
    const JsonAt entry(&value, fmt::format("{}.{}", at.path(), std::string_view(key)));
    const std::string_view content = TRY(entry["content"].String());
    bool agrees = false;
    for (const AddedToken& token : added) {
      if (token.content != content || std::to_string(Raw(token.id)) != std::string_view(key))
        continue;
      agrees = TRY(entry["special"].Bool(false)) == token.special &&
               TRY(entry["single_word"].Bool(false)) == token.single_word &&
               TRY(entry["lstrip"].Bool(false)) == token.lstrip &&
               TRY(entry["rstrip"].Bool(false)) == token.rstrip &&
               TRY(entry["normalized"].Bool(!token.special)) == token.normalized;
    }
    if (!agrees) {
      return InvalidArgument(
          "{}: '{}' differs from the added_tokens of tokenizer.json: save both "
          "files again with transformers",
          entry.path(), content);
    }
  }
  return {};
}

// Which of the two files decides what add_special_tokens adds.
Status ReadSpecialTokenRule(const JsonAt& config, TokenizerParts* parts) {
  const JsonAt add_bos = config["add_bos_token"], add_eos = config["add_eos_token"];
  const JsonAt name = config["tokenizer_class"];
  const std::string_view tokenizer_class = name.present() ? TRY(name.String()) : "";
  const bool llama = tokenizer_class == "LlamaTokenizerFast" || tokenizer_class == "LlamaTokenizer";
  const bool flags = tokenizer_class.empty() && (add_bos.present() || add_eos.present());
  if (!llama && !tokenizer_class.empty() && tokenizer_class != "PreTrainedTokenizerFast" &&
      tokenizer_class != "TokenizersBackend") {
    return Unimplemented(
        "{} '{}' is not supported (supported: PreTrainedTokenizerFast, "
        "TokenizersBackend, LlamaTokenizerFast, LlamaTokenizer)",
        name.path(), tokenizer_class);
  }
  if (!llama && !flags) return {};
  const auto rule = [parts](bool add, const std::string& token, const JsonAt& flag,
                            std::vector<TokenId>* ids) -> Status {
    ids->clear();
    if (!add) return {};
    if (token.empty()) {
      return InvalidArgument(
          "{} asks for a token that the file does not name: set bos_token and "
          "eos_token, or this to false",
          flag.path());
    }
    ids->push_back(*parts->vocabulary.Find(token));
    return {};
  };
  TRY(rule(TRY(add_bos.Bool(true)), parts->bos_token, add_bos, &parts->prefix));
  return rule(TRY(add_eos.Bool(false)), parts->eos_token, add_eos, &parts->suffix);
}

// A string, or a list of {"name", "template"}.
Status ReadChatTemplate(const JsonAt& at, std::string* chat_template) {
  if (!at.present()) return {};
  if (!at.value().is_array()) {
    *chat_template = TRY(at.String());
  } else {
    for (const JsonAt& entry : TRY(at.Array())) {
      if (TRY(entry["name"].String()) == "default")
        *chat_template = TRY(entry["template"].String());
    }
  }
  if (chat_template->size() > kMaxTemplateBytes) {
    return ResourceExhausted("{} is longer than {} bytes", at.path(), kMaxTemplateBytes);
  }
  return {};
}

}  // namespace

Status ReadTokenizerConfig(const std::string& folder, TokenizerParts* parts) {
  const std::string path = folder + "/tokenizer_config.json";
  if (Exists(path)) {
    const json::value document = TRY(ReadJsonFile(path, kMaxConfigBytes));
    const JsonAt root(&document, path + ":");
    TRY(root.Object());
    TRY(CheckAddedTokens(root["added_tokens_decoder"], parts->added));
    TRY(ReadNamedToken(root["bos_token"], parts->vocabulary, &parts->bos_token));
    TRY(ReadNamedToken(root["eos_token"], parts->vocabulary, &parts->eos_token));
    TRY(ReadSpecialTokenRule(root, parts));
    TRY(ReadChatTemplate(root["chat_template"], &parts->chat_template));
  }
  const std::string template_path = folder + "/chat_template.jinja";
  if (Exists(template_path)) {
    parts->chat_template = TRY(ReadFile(template_path, kMaxTemplateBytes));
    if (ValidUtf8Prefix(parts->chat_template) != parts->chat_template.size()) {
      return InvalidArgument("{} is not UTF-8: fetch the file again", template_path);
    }
  }
  return {};
}

}  // namespace fathom
