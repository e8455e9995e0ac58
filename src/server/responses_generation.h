// Answers of /v1/responses.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "server/block_generation.h"
#include "server/response_store.h"

namespace fathom {

// What an answer repeats of its request, and where it is kept.
struct ResponseContext {
  std::string sampling;            // members of JSON, and a comma
  std::string shown;               // members of JSON
  std::string messages;            // JSON: the conversation that it answers
  ResponseStore* store = nullptr;  // null: it is not kept
  std::string owner;               // who may ask for it
};

// The JSON of a response that is in progress, as one that is cancelled.
std::string CancelledResponse(const std::string& response);

class ResponsesGeneration final : public BlockGeneration {
 public:
  ResponsesGeneration(GenerationSetup setup, const ChatOutputOptions& options,
                      ResponseContext context);
  ~ResponsesGeneration() override;

  std::string LastEvents() override;
  std::string ErrorEvents() override;
  Result<std::string> Body(const WorkLimits& limits) override;
  size_t repeated_bytes() const override { return context_.shown.size(); }
  // A block's end says it three times, and the answer's end once more.
  size_t repeated_text() const override { return 4 * kept_text(); }

 private:
  size_t FirstBytes(size_t) const override { return 2 * repeated_bytes(); }
  void OnBegin(std::string* events) override;
  void OnOpen(const Block& block, std::string* events) override;
  void OnText(const Block& block, std::string_view text, std::string* events) override;
  void OnClose(const Block& block, std::string* events) override;
  bool CancelAsked() const override { return *cancel_; }

  // An event of `type`; with `of_block` it names the last block as its item.
  std::string TypedEvent(std::string_view type, boost::json::object fields, bool of_block = false);
  void AddResponseEvent(std::string_view type, std::string_view response, std::string* events);
  std::string ItemId(const Block& block, size_t index) const;
  boost::json::object Item(const Block& block, size_t index, const char* status) const;
  // As JSON. It begins with its id and its status, as CancelledResponse() expects.
  std::string Response(const char* status) const;
  const char* Status() const;
  // The whole answer, which is also kept.
  std::string Finished();

  ResponseContext context_;
  const std::shared_ptr<std::atomic<bool>> cancel_ = std::make_shared<std::atomic<bool>>(false);
  bool kept_ = false;
  int64_t sequence_ = 0;  // of the next event
};

}  // namespace fathom
