// Which web pages may use the server from a browser: cross-origin resource sharing
// (https://fetch.spec.whatwg.org/#http-cors-protocol). Programs other than browsers send no Origin
// and are not concerned.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http.h"

namespace fathom {

// Whether a page of `origin` comes from the server that is called `host`, whichever the scheme: a
// proxy in front may speak TLS for it.
bool IsSameOrigin(std::string_view origin, std::string_view host);

// Immutable. THREAD: any.
class CorsPolicy {
 public:
  // `allowed`: origins as "http://localhost:3000"; "*" allows every one.
  explicit CorsPolicy(std::vector<std::string> allowed) : allowed_(std::move(allowed)) {}

  bool Allows(std::string_view origin) const;
  // What every answer to a request from `origin` must say; nothing if it is empty or not allowed,
  // and then the browser keeps the answer from the page.
  std::vector<std::pair<std::string, std::string>> Headers(std::string_view origin) const;
  // What answers a request from an origin that is not allowed.
  static ApiError NotAllowed();
  // The answer to OPTIONS, which browsers send first to ask whether they may. `methods`: those of
  // the path.
  HttpResponse Preflight(const HttpRequest& head, std::string methods) const;

 private:
  bool any() const;
  const std::vector<std::string> allowed_;
};

// By which names the server may be called. One that only this machine reaches is called by a name
// of this machine; another name is that of a web page's own server, which a browser was told to
// find here (DNS rebinding). Immutable. THREAD: any.
class HostPolicy {
 public:
  // `allowed`: further names, without ports; "*" allows every one. Without `loopback` all are
  // allowed unless some are given.
  HostPolicy(bool loopback, std::vector<std::string> allowed)
      : loopback_(loopback), allowed_(std::move(allowed)) {}

  // `host` as in a Host header; "" (of HTTP/1.0) is allowed, as browsers always send one.
  bool Allows(std::string_view host) const;
  // Whether `host` cannot be the name of another's page: it is an address, this machine's, or one
  // of those given, "*" aside.
  bool IsOurs(std::string_view host) const;

 private:
  bool IsGiven(std::string_view name) const;

  const bool loopback_;
  const std::vector<std::string> allowed_;
};

}  // namespace fathom
