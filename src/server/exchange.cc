#include "server/exchange.h"

#include <algorithm>
#include <string_view>

#include "server/http_wire.h"
#include "server/routes.h"

namespace fathom {

namespace http = boost::beast::http;

Exchange::Exchange(const ServerOptions& options, MemoryBudget& budget) : claim(budget) {
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  parser.get().body().claim = &claim;
}

void Exchange::TakeHead() {
  const auto& head = parser.get();
  std::string_view target = View(head.target());
  request.host = View(head[http::field::host]);
  // Absolute form (RFC 9112, 3.2.2): its host counts.
  if (const size_t scheme = target.find("://"); scheme != target.npos && !target.starts_with('/')) {
    const size_t path = std::min(target.find_first_of("/?", scheme + 3), target.size());
    request.host = target.substr(scheme + 3, path - scheme - 3);
    target = path < target.size() && target[path] == '/' ? target.substr(path) : "/";
  }
  request.method = View(head.method_string());
  request.path = CanonicalPath(target.substr(0, target.find('?')));
  request.content_type = View(head[http::field::content_type]);
  request.authorization = View(head[http::field::authorization]);
  request.api_key = View(head["X-Api-Key"]);
  request.origin = View(head[http::field::origin]);
  request.wanted_headers = View(head[http::field::access_control_request_headers]);
  request.known_tags = View(head[http::field::if_none_match]);
  request.id = RequestIdFrom(View(head["X-Request-Id"]));
  head_only = head.method() == http::verb::head;
  chunked = head.version() >= 11;
}

}  // namespace fathom
