#include "server/block_generation.h"

#include <utility>

namespace fathom {

namespace {

constexpr size_t kMostBlank = size_t{64} << 10;
constexpr size_t kBlockBytes = 256;  // roughly, of a block beside its text

bool AreOfOneKind(const ChatDelta& a, const ChatDelta& b) {
  const bool reasoning = !a.reasoning.empty() || !b.reasoning.empty();
  const bool content = !a.content.empty() || !b.content.empty();
  const bool calls = !a.tool_calls.empty() || !b.tool_calls.empty();
  return reasoning + content + calls <= 1;
}

}  // namespace

BlockGeneration::BlockGeneration(GenerationSetup setup, const ChatOutputOptions& options,
                                 const char* object_name)
    : Generation(std::move(setup), object_name),
      parallel_tool_calls_(options.parallel_tool_calls),
      parser_(options.parser),
      meter_(*this->setup().tokenizer) {}

void BlockGeneration::Stream(Piece piece, std::string* events, const WorkLimits&) {
  if (piece.first) OnBegin(events);
  Take(std::move(piece), events);
}

void BlockGeneration::Collect(Piece piece) {
  Take(std::move(piece), nullptr);
}

// `events`: null if the answer is not streamed.
void BlockGeneration::Take(Piece piece, std::string* events) {
  // Part by part: a delta does not say whether a text stands before a call or behind it. What is of
  // one kind is one event all the same.
  ChatDelta of_one_kind;
  meter_.Begin(parser_.in_reasoning());
  for (const std::string_view part : PartsAtMarkers(piece.text)) {
    ChatDelta delta = parser_.Push(part);
    meter_.Pass(parser_.in_reasoning());
    if (delta.empty()) continue;
    if (!AreOfOneKind(of_one_kind, delta)) AddDelta(std::exchange(of_one_kind, {}), events);
    Append(std::move(delta), &of_one_kind);
  }
  AddDelta(std::move(of_one_kind), events);
  meter_.End(piece.tokens);
  if (!piece.finish) return;
  AddDelta(parser_.Finish(), events);
  finish_ = piece.finish;
  stop_reason_ = std::move(piece.stop_reason);
  Close(events);
}

void BlockGeneration::AddDelta(ChatDelta delta, std::string* events) {
  AddText(Kind::kThinking, delta.reasoning, events);
  AddText(Kind::kText, delta.content, events);
  for (ToolCallDelta& call : delta.tool_calls) {
    if (call.index > 0 && !parallel_tool_calls_) break;
    if (!call.name.empty()) {
      Open({Kind::kCall, "", std::move(call.id), std::move(call.name)}, events);
    }
    Add(call.arguments, events);
  }
}

// A text of whitespace alone is no block: clients may not send such a block back. Much of it is one
// all the same, or it would be kept for nobody.
void BlockGeneration::AddText(Kind kind, std::string_view text, std::string* events) {
  if (text.empty()) return;
  if (open_ && blocks_.back().kind == kind) return Add(text, events);
  const bool blank = text.find_first_not_of(" \t\n\v\f\r") == std::string::npos;
  if (std::exchange(blank_kind_, kind) != kind) blank_.clear();
  blank_ += text;
  if (blank && blank_.size() < kMostBlank) return;
  const std::string whole = std::exchange(blank_, {});
  Open({kind, "", "", ""}, events);
  Add(whole, events);
}

void BlockGeneration::Open(Block block, std::string* events) {
  Close(events);
  text_bytes_ += kBlockBytes + block.id.size() + block.name.size();
  blocks_.push_back(std::move(block));
  open_ = true;
  if (events != nullptr) OnOpen(blocks_.back(), events);
}

void BlockGeneration::Add(std::string_view text, std::string* events) {
  if (text.empty()) return;
  blocks_.back().text += text;
  text_bytes_ += text.size();
  if (events != nullptr) OnText(blocks_.back(), text, events);
}

void BlockGeneration::Close(std::string* events) {
  blank_.clear();
  if (std::exchange(open_, false) && events != nullptr) OnClose(blocks_.back(), events);
}

}  // namespace fathom
