#include "chat/output_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace fathom {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>",
                           kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>", kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";

constexpr std::array kReasoningStartMarkers = {kThink, kEndThink};
constexpr std::array kReasoningMarkers = {kEndThink};
constexpr std::array kContentStartMarkers = {kCallsBegin, kThink};     // the first one needs tools
constexpr std::array kLateMarkers = {kCallsBegin, kThink, kEndThink};  // the first one needs tools
constexpr std::array kToolMarkers = {kCallsBegin, kCallsEnd, kCallBegin, kCallEnd, kSeparator};
constexpr std::array kArgumentMarkers = {kCallEnd, kCallsEnd, kCallBegin};

constexpr std::string_view kWhitespace = " \t\n\v\f\r";

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(kWhitespace) == std::string_view::npos;
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhitespace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhitespace) + 1 - begin);
}

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// "call_" and 24 hexadecimal digits.
std::string CallId(uint64_t seed, int index) {
  const auto bits = Philox4x32({static_cast<uint32_t>(index), 0, 0, 0},
                               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return fmt::format("call_{:08x}{:08x}{:08x}", bits[0], bits[1], bits[2]);
}

// Where the first of `markers` begins in `text`, or the first byte that may still become one.
struct Found {
  size_t begin;
  std::string_view marker;  // empty when it is not whole yet
};
Found Find(std::string_view text, std::span<const std::string_view> markers) {
  for (size_t at = text.find('<'); at < text.size(); at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    for (const std::string_view marker : markers) {
      if (rest.starts_with(marker)) return {at, marker};
      if (marker.starts_with(rest)) return {at, {}};
    }
  }
  return {text.size(), {}};
}

}  // namespace

OutputParser::OutputParser(OutputParserOptions options)
    : options_(options), call_(options.tool_call_form) {
  state_ = !options.parse_reasoning      ? State::kContent
           : options.starts_in_reasoning ? State::kReasoningStart
                                         : State::kContentStart;
  options_.may_think_late &= options.parse_reasoning && !options.starts_in_reasoning;
  if (!options_.tool_call_id_seed) options_.tool_call_id_seed = RandomSeed();
}

std::span<const std::string_view> OutputParser::Markers() const {
  switch (state_) {
    case State::kReasoningStart: return kReasoningStartMarkers;
    case State::kReasoning: return kReasoningMarkers;
    case State::kContentStart:
      if (options_.may_think_late) break;
      return std::span<const std::string_view>(kContentStartMarkers)
          .subspan(options_.parse_tools ? 0 : 1);
    case State::kContent:
      if (options_.may_think_late) break;
      return std::span<const std::string_view>(kToolMarkers).first(options_.parse_tools ? 1 : 0);
    case State::kBetweenCalls:
    case State::kCallHead: return kToolMarkers;
    case State::kArguments: return kArgumentMarkers;
  }
  return std::span<const std::string_view>(kLateMarkers).subspan(options_.parse_tools ? 0 : 1);
}

ChatDelta OutputParser::Push(std::string_view text) {
  ChatDelta delta;
  held_ += text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const auto [begin, marker] = Find(rest, Markers());
    const State before = state_;
    if (begin > 0) Text(rest.substr(0, begin), delta);
    rest.remove_prefix(begin);
    // Text may change the state, and with it what the bytes that follow can be.
    if (state_ != before) continue;
    if (marker.empty()) break;
    Marker(marker, delta);
    rest.remove_prefix(marker.size());
  }
  held_.erase(0, held_.size() - rest.size());
  return delta;
}

ChatDelta OutputParser::Finish() {
  ChatDelta delta;
  if (!held_.empty()) Text(held_, delta);
  held_.clear();
  if (state_ == State::kArguments) EndCall(delta);
  return delta;
}

void OutputParser::Text(std::string_view text, ChatDelta& delta) {
  switch (state_) {
    case State::kReasoningStart:
      if (!IsBlank(text)) state_ = State::kReasoning;
      [[fallthrough]];
    case State::kReasoning: delta.reasoning += text; return;
    case State::kContentStart:
      if (!IsBlank(text)) state_ = State::kContent;
      [[fallthrough]];
    case State::kContent:
    case State::kBetweenCalls: return Content(text, delta);
    case State::kCallHead:
    case State::kArguments: return CallText(text, delta);
  }
}

void OutputParser::Marker(std::string_view marker, ChatDelta& delta) {
  if (marker == kThink || marker == kEndThink) options_.may_think_late = false;
  if (marker == kThink) {
    state_ = State::kReasoning;
  } else if (marker == kEndThink) {
    state_ = State::kContent;
  } else if (state_ == State::kCallHead && marker == kSeparator && call_.Separator(marker)) {
    if (call_.named()) ShowCall({}, delta);
  } else {
    const bool in_call = state_ == State::kCallHead || state_ == State::kArguments;
    if (in_call) EndCall(delta);
    if (marker == kCallsBegin || (marker == kCallEnd && state_ == State::kArguments)) {
      state_ = State::kBetweenCalls;
      drop_whitespace_ = true;
    } else if (marker == kCallsEnd) {
      state_ = State::kContent;
      drop_whitespace_ = true;
    } else if (marker == kCallBegin) {
      call_.Begin();
      state_ = State::kCallHead;
    } else {
      Content(marker, delta);  // the end or the separator of no call
    }
  }
}

void OutputParser::Content(std::string_view text, ChatDelta& delta) {
  if (drop_whitespace_) {
    text.remove_prefix(std::min(text.find_first_not_of(kWhitespace), text.size()));
  }
  if (text.empty()) return;
  drop_whitespace_ = false;
  delta.content += text;
}

void OutputParser::CallText(std::string_view text, ChatDelta& delta) {
  std::string arguments;
  call_.Push(text, &arguments);
  if (call_.named()) {
    ShowCall(std::move(arguments), delta);
  } else if (call_.head().size() > kMaxToolNameBytes) {
    AbandonCall(delta);  // no tool has such a name
  }
}

// The name, the first time, and more of the arguments. REQUIRES: call_.named().
void OutputParser::ShowCall(std::string arguments, ChatDelta& delta) {
  if (state_ == State::kCallHead) {
    delta.tool_calls.push_back({next_index_, CallId(*options_.tool_call_id_seed, next_index_),
                                call_.name(), std::move(arguments)});
    ++next_index_;
    state_ = State::kArguments;
    return;
  }
  if (arguments.empty()) return;
  if (delta.tool_calls.empty()) {
    delta.tool_calls.push_back({next_index_ - 1, {}, {}, {}});
  }
  delta.tool_calls.back().arguments += arguments;
}

void OutputParser::EndCall(ChatDelta& delta) {
  std::string arguments;
  call_.End(&arguments);
  if (call_.named()) {
    ShowCall(std::move(arguments), delta);
  } else {
    AbandonCall(delta);
  }
}

// What looked like a call goes to the content as it was written.
void OutputParser::AbandonCall(ChatDelta& delta) {
  Content(kCallBegin, delta);
  Content(call_.head(), delta);
  call_.Begin();
  state_ = State::kBetweenCalls;
}

std::vector<std::string_view> PartsAtMarkers(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t size = std::min(text.find('>'), text.size() - 1) + 1;
    parts.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return parts;
}

OutputParserOptions OptionsAfter(std::string_view rendered_prompt, bool has_think_token) {
  const std::string_view prompt = Trim(rendered_prompt);
  const bool inside = prompt.ends_with(kThink);
  return {.starts_in_reasoning = inside,
          .may_think_late = has_think_token && !inside && !prompt.ends_with(kEndThink)};
}

std::span<const std::string_view> OutputMarkers(bool parse_tools) {
  static constexpr std::array kMarkers = {kThink,     kEndThink, kCallsBegin, kCallsEnd,
                                          kCallBegin, kCallEnd,  kSeparator};
  return std::span(kMarkers).first(parse_tools ? kMarkers.size() : 2);
}

}  // namespace fathom
