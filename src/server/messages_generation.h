// Answers of /v1/messages.
#pragma once

#include <string>
#include <string_view>

#include "server/block_generation.h"

namespace fathom {

class MessagesGeneration final : public BlockGeneration {
 public:
  MessagesGeneration(GenerationSetup setup, const ChatOutputOptions& options)
      : BlockGeneration(std::move(setup), options, "message") {}

  std::string LastEvents() override;
  std::string ErrorEvents() override;
  Result<std::string> Body(const WorkLimits& limits) override;

 private:
  void OnBegin(std::string* events) override;
  void OnOpen(const Block& block, std::string* events) override;
  void OnText(const Block& block, std::string_view text, std::string* events) override;
  void OnClose(const Block& block, std::string* events) override;

  boost::json::object Message() const;
  boost::json::object UsageJson() const;
  // {"stop_reason", "stop_sequence"}
  boost::json::object Stop() const;
};

}  // namespace fathom
