#include "source.h"

#include <boost/json.hpp>
#include <string_view>

#include "base/mmap.h"
#include "base/rng.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr uint64_t kPrefixStream = ~uint64_t{0};  // no request has this number
constexpr int32_t kFirstId = 10;  // ids below it are special tokens in many vocabularies
// Words that byte-level vocabularies have whole.
constexpr std::string_view kWords[] = {
    "the",   "of",    "and", "to",   "in",   "is",    "that", "for",  "it",   "as",    "was",
    "with",  "be",    "by",  "on",   "not",  "he",    "this", "are",  "or",   "his",   "from",
    "at",    "which", "but", "have", "an",   "had",   "they", "you",  "were", "their", "one",
    "all",   "we",    "can", "her",  "has",  "there", "been", "if",   "more", "when",  "will",
    "would", "who",   "so",  "no",   "time", "out",   "up",   "what", "some", "two"};

json::array UserMessage(json::value&& text) {
  return {json::object{{"role", "user"}, {"content", std::move(text)}}};
}

// What a line holds, in the endpoint's form.
Result<json::object> ParseLine(std::string_view line, bool chat) {
  boost::system::error_code error;
  json::value value = json::parse(line, error);
  if (error || !value.is_object()) return InvalidArgument("it is not a JSON object");
  json::object& from = value.as_object();
  json::object request;
  json::value *prompt = from.if_contains("prompt"), *messages = from.if_contains("messages");
  if (chat && messages != nullptr && messages->is_array()) {
    request["messages"] = std::move(*messages);
  } else if (chat && prompt != nullptr && prompt->is_string()) {
    request["messages"] = UserMessage(std::move(*prompt));
  } else if (!chat && prompt != nullptr && (prompt->is_string() || prompt->is_array())) {
    request["prompt"] = std::move(*prompt);
  } else {
    return InvalidArgument("it has no \"prompt\" that is text{}",
                           chat ? ", and no list of \"messages\"" : " or token ids");
  }
  if (const json::value* max_tokens = from.if_contains("max_tokens")) {
    const int64_t* count = max_tokens->if_int64();
    if (count == nullptr || *count < 1 || *count > INT32_MAX) {
      return InvalidArgument("its max_tokens is no positive number");
    }
    request["max_tokens"] = *count;
  }
  return request;
}

}  // namespace

Result<RequestSource> RequestSource::Make(const SourceOptions& options) {
  RequestSource source(options);
  if (!options.dataset_path.empty()) TRY(source.ReadLines());
  return source;
}

Status RequestSource::ReadLines() {
  const std::string text = TRY(ReadFile(options_.dataset_path, kMaxFileBytes));
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<json::object> request = ParseLine(line, options_.chat);
    if (!request.ok()) {
      return request.status().WithContext(
          fmt::format("{}, line {}", options_.dataset_path, number));
    }
    lines_.push_back(*std::move(request));
  }
  if (lines_.empty()) return InvalidArgument("{} has no line", options_.dataset_path);
  return {};
}

json::object RequestSource::RandomRequest(int64_t index, int32_t prefix_len) const {
  Rng shared(options_.seed, kPrefixStream), own(options_.seed, static_cast<uint64_t>(index));
  const int32_t length = prefix_len + options_.input_len;
  const auto below = [&](int32_t at, size_t n) {
    return (at < prefix_len ? shared : own).Below(static_cast<uint32_t>(n));
  };
  if (options_.chat) {
    std::string text;
    for (int32_t i = 0; i < length; ++i) {
      if (i > 0) text += ' ';
      text += kWords[below(i, std::size(kWords))];
    }
    return {{"messages", UserMessage(json::string(text))}};
  }
  json::array ids;
  ids.reserve(static_cast<size_t>(length));
  for (int32_t i = 0; i < length; ++i) {
    ids.push_back(kFirstId + below(i, static_cast<size_t>(options_.vocab_size - kFirstId)));
  }
  return {{"prompt", std::move(ids)}};
}

RequestSource::Prepared RequestSource::At(int64_t index) const {
  return Prepare(lines_.empty() ? RandomRequest(index, options_.prefix_len)
                                : lines_[static_cast<size_t>(index) % lines_.size()]);
}

RequestSource::Prepared RequestSource::Turn(int64_t index, json::array& messages) const {
  const int32_t prefix_len = messages.empty() ? options_.prefix_len : 0;
  json::object request = RandomRequest(index, prefix_len);
  messages.push_back(std::move(request["messages"].as_array()[0]));
  request["messages"] = messages;
  return Prepare(std::move(request));
}

RequestSource::Prepared RequestSource::Prepare(json::object request) const {
  if (!request.contains("max_tokens")) request["max_tokens"] = options_.output_len;
  const auto max_tokens = static_cast<int32_t>(request["max_tokens"].as_int64());
  request["model"] = options_.model;
  request["temperature"] = options_.temperature;
  request["stream"] = true;
  request["stream_options"] = json::object{{"include_usage", true}};
  if (options_.ignore_eos) request["ignore_eos"] = true;
  return {json::serialize(request), max_tokens};
}

}  // namespace fathom
