// The requests of a load test: random prompts, or those of a file.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace fathom {

struct SourceOptions {
  std::string model;
  bool chat = false;         // /v1/chat/completions, not /v1/completions
  std::string dataset_path;  // JSON lines; empty: random prompts
  int32_t num_prompts = 1000;
  int32_t input_len = 1024;  // tokens of a random prompt; of a chat message: words of a token or so
  int32_t prefix_len = 0;    // before it, the same for all prompts
  int32_t output_len = 128;  // unless a line of the file says otherwise
  int32_t vocab_size = 1000;  // random token ids are below
  double temperature = 0;
  bool ignore_eos = true;
  uint64_t seed = 0;
};

class RequestSource {
 public:
  // Reads the file, whose every line is an object with "prompt" (text, or token ids) or "messages",
  // and "max_tokens" if it likes. Errors name the line.
  static Result<RequestSource> Make(const SourceOptions& options);

  struct Prepared {
    std::string body;  // JSON, asking for a stream with usage
    int32_t max_tokens = 0;
  };
  // Request `index` of any number: the same for the same options; a file's lines come round again.
  Prepared At(int64_t index) const;
  // A talk's next turn, request `index`: `messages` gets its question. REQUIRES: options.chat.
  Prepared Turn(int64_t index, boost::json::array& messages) const;

 private:
  explicit RequestSource(const SourceOptions& options) : options_(options) {}
  Status ReadLines();
  boost::json::object RandomRequest(int64_t index, int32_t prefix_len) const;
  Prepared Prepare(boost::json::object request) const;

  SourceOptions options_;
  std::vector<boost::json::object> lines_;  // with "prompt" or "messages", as the endpoint wants
};

}  // namespace fathom
