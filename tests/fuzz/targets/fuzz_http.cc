// Bytes of a client, in pieces as they may arrive: heads, bodies, what is made of them.
#include <algorithm>
#include <boost/asio/buffer.hpp>

#include "fuzz.h"
#include "server/access.h"
#include "server/exchange.h"
#include "server/http_wire.h"

namespace fathom {
namespace {

const ServerOptions& Options() {
  static const ServerOptions options = [] {
    ServerOptions some;
    some.api_key = "secret";
    some.allowed_origins = {"http://localhost:3000"};
    some.loopback = true;
    some.max_header_bytes = 4096;
    some.max_body_bytes = size_t{64} << 10;
    return some;
  }();
  return options;
}

// Reads one request. The bytes of it, or 0 if it is none.
size_t Read(std::string_view text, size_t piece, Access& access) {
  MemoryBudget budget(size_t{1} << 20);
  Exchange exchange(Options(), budget);
  boost::system::error_code error;
  size_t read = 0, given = 0;
  while (!exchange.parser.is_done() && given < text.size()) {
    given = std::min(given + piece, text.size());
    while (!exchange.parser.is_done() && read < given) {
      const size_t put =
          exchange.parser.put(boost::asio::buffer(text.data() + read, given - read), error);
      if (error == boost::beast::http::error::need_more) error = {};
      if (error) break;
      read += put;
      if (put == 0) break;
    }
    if (error) break;
  }
  exchange.TakeHead();
  CHECK(exchange.claim.held() <= text.size(), "more is claimed than has arrived");
  CHECK(exchange.parser.get().body().text.size() <= Options().max_body_bytes);
  if (error) {
    const HttpResponse refusal = BadRead(error, Options());
    CHECK(refusal.status == 400 || refusal.status == 413 || refusal.status == 431);
    return 0;
  }
  if (!exchange.parser.is_header_done()) return 0;
  const bool refused = BadHead(exchange.parser.get()) || access.CheckHead(exchange.request);
  CHECK(refused || exchange.request.authorization.find("secret") != std::string::npos ||
            exchange.request.api_key == "secret" || exchange.request.client == nullptr,
        "{} was let in without a key", exchange.request.path);
  return exchange.parser.is_done() ? read : 0;
}

}  // namespace
}  // namespace fathom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fathom::Access& access = *fathom::Access::Make(fathom::Options()).value().release();
  if (size == 0) return 0;
  const size_t piece = 1 + data[0];
  std::string_view text = fathom::TextOf(data + 1, size - 1);
  while (const size_t read = fathom::Read(text, piece, access)) text.remove_prefix(read);
  return 0;
}
