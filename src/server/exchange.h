// A request on a connection, as far as it has come, and how its answer is to be framed.
#pragma once

#include <algorithm>
#include <boost/beast/core/buffer_traits.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <chrono>
#include <string>

#include "base/memory_budget.h"
#include "server/http.h"
#include "server/openai_response.h"
#include "server/options.h"

namespace fathom {

// For Beast: a body whose bytes are claimed as they arrive, whatever was announced.
struct ArrivingBody {
  struct value_type {  // NOLINT: Beast's name
    std::string text;
    MemoryClaim* claim = nullptr;
  };

  class reader {  // NOLINT: Beast's name
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>& announced, boost::system::error_code& error) {
      announced_ = announced ? static_cast<size_t>(*announced) : 0;
      error = {};
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      const size_t bytes = boost::beast::buffer_bytes(buffers);
      if (!body_.claim->Grow(bytes).ok()) {
        error = make_error_code(boost::system::errc::not_enough_memory);
        return 0;
      }
      const size_t size = body_.text.size() + bytes;
      if (size > body_.text.capacity()) {  // no more than is known to come
        body_.text.reserve(announced_ == 0 ? 2 * size
                                           : std::max(size, std::min(2 * size, announced_)));
      }
      for (const auto& buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.text.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      error = {};
      return bytes;
    }
    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
    size_t announced_ = 0;
  };
};

struct Exchange {
  Exchange(const ServerOptions& options, MemoryBudget& budget);

  // From the head, however much of it could be read.
  void TakeHead();

  // 0: never.
  bool timed_out(int after_ms) const {
    return after_ms > 0 &&
           std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(after_ms);
  }

  MemoryClaim claim;
  boost::beast::http::request_parser<ArrivingBody> parser;
  HttpRequest request;
  bool head_only = false;
  bool keep_alive = false;
  bool chunked = true;  // HTTP/1.0 knows no chunks: the end of the connection ends the body
  bool unread = true;   // the client may still be sending
  bool probed = false;  // after a half-close: kProtocol is sent, or a comment of a stream
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  Usage usage;
  size_t waited_bytes = 0;  // the most of what came from the engine and was not taken
  std::string failure;      // what ended it, for the log
};

}  // namespace fathom
