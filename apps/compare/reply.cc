#include "reply.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/printable.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr float kLeast = -9999;  // what servers write for minus infinity
constexpr float kMost = 1e-3f;   // above 0, by rounding

Status Unfit(std::string_view what) {
  return Unavailable("the server's answer does not make sense: {}", what);
}

Result<json::value> Parse(std::string_view body) {
  boost::system::error_code error;
  json::value value = json::parse(body, error);
  if (!error) return value;
  return Unavailable("the server's answer is no JSON ({}); it begins with {}", error.message(),
                     Printable(body, 60));
}

const json::value* Find(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

// The array or object at `key`; null if there is none, or it is something else.
const json::array* ArrayAt(const json::object& object, std::string_view key) {
  const json::value* value = Find(object, key);
  return value == nullptr ? nullptr : value->if_array();
}
const json::object* ObjectAt(const json::object& object, std::string_view key) {
  const json::value* value = Find(object, key);
  return value == nullptr ? nullptr : value->if_object();
}

Result<float> Logprob(const json::value& value) {
  boost::system::error_code error;
  const double number = value.to_number<double>(error);
  if (error || !std::isfinite(number) || number > kMost) {
    return Unfit(fmt::format("{} is no log-probability", Printable(json::serialize(value), 40)));
  }
  return std::max(static_cast<float>(number), kLeast);
}

Result<TokenId> Id(int64_t id, int32_t vocab_size) {
  if (id < 0 || id >= vocab_size) {
    return Unfit(
        fmt::format("token {} is none of the model's {}: is it another model?", id, vocab_size));
  }
  return TokenId{static_cast<int32_t>(id)};
}

Result<TokenId> IdOf(const json::value& value, int32_t vocab_size) {
  const int64_t* id = value.if_int64();
  if (id == nullptr) return Unfit("a token that is no number");
  return Id(*id, vocab_size);
}

// Of "5" or, behind `prefix`, "token_id:5"; nothing for other names.
std::optional<int64_t> IdNamed(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t id = 0;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), id);
  if (read.ec != std::errc() || read.ptr != name.data() + name.size()) return std::nullopt;
  return id;
}
constexpr std::string_view kIdPrefix = "token_id:";

Result<std::vector<TokenId>> Ids(const json::array& list, int32_t vocab_size) {
  std::vector<TokenId> ids;
  for (const json::value& value : list) ids.push_back(TRY(IdOf(value, vocab_size)));
  return ids;
}

void Sort(std::vector<std::pair<TokenId, float>>& top) {
  std::sort(top.begin(), top.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
}

// {"token_id:5": -0.1, ...}; names that are texts say nothing.
Result<std::vector<std::pair<TokenId, float>>> NamedTop(const json::object& entries,
                                                        int32_t vocab_size) {
  std::vector<std::pair<TokenId, float>> top;
  for (const auto& [name, value] : entries) {
    const std::optional<int64_t> id = IdNamed(name, kIdPrefix);
    if (id) top.emplace_back(TRY(Id(*id, vocab_size)), TRY(Logprob(value)));
  }
  Sort(top);
  return top;
}

// Entry `i` of the "logprobs" of a completion; nothing where it is null.
Result<std::optional<TokenLogprobs>> LegacyAt(const json::object& logprobs, size_t i,
                                              int32_t vocab_size) {
  const json::array* values = ArrayAt(logprobs, "token_logprobs");
  if (values == nullptr || i >= values->size() || (*values)[i].is_null()) {
    return std::optional<TokenLogprobs>();
  }
  TokenLogprobs entry{.logprob = TRY(Logprob((*values)[i]))};
  const json::array* tops = ArrayAt(logprobs, "top_logprobs");
  if (tops != nullptr && i < tops->size() && (*tops)[i].is_object()) {
    entry.top = TRY(NamedTop((*tops)[i].get_object(), vocab_size));
  }
  return std::optional(std::move(entry));
}

// [null, {"5": {"logprob": -0.1}, ...}, ...]: of each token that stands there, and the likeliest.
Result<std::vector<TokenLogprobs>> PromptLogprobs(const json::array& list,
                                                  const AskedPrompt& asked) {
  if (list.size() != asked.tokens.size()) {
    return Unfit(fmt::format("prompt_logprobs has {} entries for {} tokens", list.size(),
                             asked.tokens.size()));
  }
  std::vector<TokenLogprobs> prompt;
  for (size_t i = 1; i < list.size(); ++i) {
    const json::object* entries = list[i].if_object();
    if (entries == nullptr) return Unfit("an entry of prompt_logprobs is no object");
    TokenLogprobs at;
    bool stands = false;
    for (const auto& [name, value] : *entries) {
      const std::optional<int64_t> id = IdNamed(name, "");
      const json::value* logprob = value.is_object() ? Find(value.get_object(), "logprob") : &value;
      if (!id || logprob == nullptr) return Unfit("prompt_logprobs are not by token id");
      at.top.emplace_back(TRY(Id(*id, asked.vocab_size)), TRY(Logprob(*logprob)));
      if (at.top.back().first != asked.tokens[i]) continue;
      stands = true;
      at.logprob = at.top.back().second;
    }
    if (!stands) return Unfit(fmt::format("prompt_logprobs are not those of token {}", i));
    Sort(at.top);
    prompt.push_back(std::move(at));
  }
  return prompt;
}

// The first choice of a completion, whose document `*holder` keeps.
Result<const json::object*> FirstChoice(std::string_view body, json::value* holder) {
  *holder = TRY(Parse(body));
  const json::array* choices =
      holder->is_object() ? ArrayAt(holder->get_object(), "choices") : nullptr;
  if (choices == nullptr || choices->empty() || !choices->front().is_object()) {
    return Unfit("it has no choices");
  }
  return &choices->front().get_object();
}

// What was generated: token_ids, or the names of log-probabilities.
Result<std::vector<TokenId>> GeneratedIds(const json::object& choice, const AskedPrompt& asked) {
  if (const json::array* ids = ArrayAt(choice, "token_ids")) return Ids(*ids, asked.vocab_size);
  const json::object* logprobs = ObjectAt(choice, "logprobs");
  const json::array* names = logprobs == nullptr ? nullptr : ArrayAt(*logprobs, "tokens");
  std::vector<TokenId> ids;
  for (size_t i = 0; names != nullptr && i < names->size(); ++i) {
    const json::string* name = (*names)[i].if_string();
    const auto id = name == nullptr ? std::nullopt : IdNamed(*name, kIdPrefix);
    if (!id) break;
    ids.push_back(TRY(Id(*id, asked.vocab_size)));
  }
  if (names != nullptr && ids.size() == names->size()) return ids;
  return Unavailable(
      "the server does not say which tokens it generated: it knows neither return_token_ids nor "
      "return_tokens_as_token_ids");
}

// [-0.1, 5, text or null]
Result<std::pair<TokenId, std::optional<float>>> NativeEntry(const json::value& value,
                                                             int32_t vocab_size) {
  const json::array* entry = value.if_array();
  if (entry == nullptr || entry->size() < 2) return Unfit("a log-probability without a token");
  std::optional<float> logprob;
  if (!(*entry)[0].is_null()) logprob = TRY(Logprob((*entry)[0]));
  return std::pair(TRY(IdOf((*entry)[1], vocab_size)), logprob);
}

Result<std::vector<std::pair<TokenId, float>>> NativeTop(const json::array* tops, size_t i,
                                                         int32_t vocab_size) {
  std::vector<std::pair<TokenId, float>> top;
  if (tops == nullptr || i >= tops->size() || !(*tops)[i].is_array()) return top;
  for (const json::value& value : (*tops)[i].get_array()) {
    const auto [id, logprob] = TRY(NativeEntry(value, vocab_size));
    if (logprob) top.emplace_back(id, *logprob);
  }
  Sort(top);
  return top;
}

}  // namespace

Result<Answer> ReadCompletion(std::string_view body, const AskedPrompt& asked) {
  json::value holder;
  const json::object& choice = *TRY(FirstChoice(body, &holder));
  Answer answer;
  const std::vector<TokenId> ids = TRY(GeneratedIds(choice, asked));
  const json::object* logprobs = ObjectAt(choice, "logprobs");
  for (size_t i = 0; i < ids.size(); ++i) {
    GeneratedToken token{.id = ids[i]};
    if (logprobs != nullptr) token.logprobs = TRY(LegacyAt(*logprobs, i, asked.vocab_size));
    answer.tokens.push_back(std::move(token));
  }
  if (const json::array* prompt = ArrayAt(choice, "prompt_logprobs")) {
    answer.prompt = TRY(PromptLogprobs(*prompt, asked));
  }
  return answer;
}

Result<std::vector<TokenLogprobs>> ReadEcho(std::string_view body, const AskedPrompt& asked) {
  json::value holder;
  const json::object& choice = *TRY(FirstChoice(body, &holder));
  const json::object* logprobs = ObjectAt(choice, "logprobs");
  std::vector<TokenLogprobs> prompt;
  for (size_t i = 1; logprobs != nullptr && i < asked.tokens.size(); ++i) {
    std::optional<TokenLogprobs> entry = TRY(LegacyAt(*logprobs, i, asked.vocab_size));
    if (!entry) return std::vector<TokenLogprobs>();  // it echoes without log-probabilities
    const json::array* names = ArrayAt(*logprobs, "tokens");
    const json::string* name =
        names != nullptr && i < names->size() ? (*names)[i].if_string() : nullptr;
    const auto id = name == nullptr ? std::nullopt : IdNamed(*name, kIdPrefix);
    if (id && *id != Raw(asked.tokens[i])) return Unfit("it echoes another prompt");
    prompt.push_back(*std::move(entry));
  }
  return prompt;
}

Result<Answer> ReadNative(std::string_view body, const AskedPrompt& asked) {
  const json::value holder = TRY(Parse(body));
  const json::object* meta =
      holder.is_object() ? ObjectAt(holder.get_object(), "meta_info") : nullptr;
  const json::array* drawn = meta == nullptr ? nullptr : ArrayAt(*meta, "output_token_logprobs");
  if (drawn == nullptr) return Unfit("it has no meta_info.output_token_logprobs");
  Answer answer;
  const json::array* tops = ArrayAt(*meta, "output_top_logprobs");
  for (size_t i = 0; i < drawn->size(); ++i) {
    const auto [id, logprob] = TRY(NativeEntry((*drawn)[i], asked.vocab_size));
    GeneratedToken token{.id = id};
    if (logprob) {
      token.logprobs = TokenLogprobs{*logprob, TRY(NativeTop(tops, i, asked.vocab_size))};
    }
    answer.tokens.push_back(std::move(token));
  }
  const json::array* prompt = ArrayAt(*meta, "input_token_logprobs");
  if (prompt == nullptr || prompt->empty()) return answer;
  if (prompt->size() != asked.tokens.size()) {
    return Unfit(fmt::format("input_token_logprobs has {} entries for {} tokens", prompt->size(),
                             asked.tokens.size()));
  }
  tops = ArrayAt(*meta, "input_top_logprobs");
  for (size_t i = 1; i < prompt->size(); ++i) {
    const auto [id, logprob] = TRY(NativeEntry((*prompt)[i], asked.vocab_size));
    if (id != asked.tokens[i] || !logprob) {
      return Unfit(fmt::format("input_token_logprobs are not those of token {}", i));
    }
    answer.prompt.push_back({*logprob, TRY(NativeTop(tops, i, asked.vocab_size))});
  }
  return answer;
}

Result<std::vector<TokenId>> ReadTokenized(std::string_view body, int32_t vocab_size) {
  const json::value value = TRY(Parse(body));
  const json::array* tokens = value.is_object() ? ArrayAt(value.get_object(), "tokens") : nullptr;
  if (tokens == nullptr) return Unfit("it has no tokens");
  return Ids(*tokens, vocab_size);
}

}  // namespace fathom
