// Answers that are lists of blocks: thinking, text and calls of tools, in the order in which they
// come. So Anthropic's Messages API has it, and OpenAI's Responses API.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat_generation.h"
#include "server/generation.h"
#include "server/reasoning_meter.h"

namespace fathom {

// Of one choice.
class BlockGeneration : public Generation {
 public:
  size_t kept_text() const override { return text_bytes_; }

 protected:
  enum class Kind { kThinking, kText, kCall };
  struct Block {
    Kind kind;
    std::string text;  // or the arguments of the call
    std::string id, name;
  };

  BlockGeneration(GenerationSetup setup, const ChatOutputOptions& options, const char* object_name);

  // Of a stream, in this order; each appends to `*events`. The block is the last of blocks().
  virtual void OnBegin(std::string* events) = 0;
  virtual void OnOpen(const Block& block, std::string* events) = 0;
  virtual void OnText(const Block& block, std::string_view text, std::string* events) = 0;
  virtual void OnClose(const Block& block, std::string* events) = 0;

  const std::vector<Block>& blocks() const { return blocks_; }
  // Once it has ended.
  const std::optional<FinishReason>& finish() const { return finish_; }
  const boost::json::value& stop_reason() const { return stop_reason_; }
  // REQUIRES: finish().
  bool ended_in_calls() const {
    return EndedInCalls(parser_, *finish_, stop_reason_, asked_grammar().has_value());
  }

 private:
  void Stream(Piece piece, std::string* events, const WorkLimits& limits) override;
  void Collect(Piece piece) override;
  boost::json::object Choice(size_t) override { return {}; }
  std::optional<int64_t> ReasoningTokens() const override { return meter_.tokens(); }
  void Take(Piece piece, std::string* events);
  void AddDelta(ChatDelta delta, std::string* events);
  void AddText(Kind kind, std::string_view text, std::string* events);
  void Open(Block block, std::string* events);
  void Add(std::string_view text, std::string* events);
  void Close(std::string* events);

  const bool parallel_tool_calls_;
  OutputParser parser_;
  ReasoningMeter meter_;
  std::vector<Block> blocks_;
  size_t text_bytes_ = 0;  // of all blocks, roughly
  bool open_ = false;      // the last block goes on
  Kind blank_kind_ = Kind::kText;
  std::string blank_;  // whitespace at the beginning of a text, before any other of it
  std::optional<FinishReason> finish_;
  boost::json::value stop_reason_;
};

}  // namespace fathom
