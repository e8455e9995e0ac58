#include "server/access.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "base/printable.h"

namespace fathom {

namespace {

// --api-key's: everybody has it, so that it tells nobody from another.
constexpr std::string_view kSharedKey = "--api-key";

std::string Lowered(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// What follows "Bearer", in any case, or X-Api-Key.
std::string_view KeyOf(const HttpRequest& head) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view given = head.authorization;
  if (Lowered(std::string(given.substr(0, kScheme.size()))) != kScheme) return head.api_key;
  const size_t key = given.find_first_not_of(' ', kScheme.size());
  return key == given.npos ? std::string_view() : given.substr(key);
}

// A type that is not JSON is one of those that a browser sends for any page without asking first;
// so is none at all.
bool IsJson(const HttpRequest& head, const CorsPolicy& cors) {
  const std::string type = Lowered(head.content_type.substr(0, head.content_type.find(';')));
  if (type.empty()) return head.origin.empty() || cors.Allows(head.origin);
  return type.find("json") != std::string::npos;
}

}  // namespace

Access::Access(const ServerOptions& options)
    : options_(options),
      cors_(options.allowed_origins),
      hosts_(options.loopback, options.allowed_hosts),
      accounts_(options.max_requests_per_client, clock_) {}

Result<std::unique_ptr<Access>> Access::Make(const ServerOptions& options) {
  if (options.open_routes) {
    for (const std::string& path : *options.open_routes) {
      if (const Status known = CheckRoute(path); !known.ok()) {
        return InvalidArgument("--open-routes: {}", known.message());
      }
    }
  }
  std::unique_ptr<Access> access(new Access(options));
  TRY(access->RereadKeys());
  return access;
}

Status Access::RereadKeys() {
  ApiKeys keys;
  if (!options_.api_key_file.empty()) {
    keys = TRY(ApiKeys::Read(options_.api_key_file));
    if (const Status fits = keys.CheckInFlight(options_.max_requests); !fits.ok()) {
      return fits.WithContext("--api-key-file " + Printable(options_.api_key_file, 256));
    }
  }
  if (!options_.api_key.empty()) TRY(keys.AddShared(kSharedKey, options_.api_key));
  for (size_t i = 0; i < options_.other_api_keys.size(); ++i) {
    TRY(keys.AddShared(fmt::format("{} {}", kSharedKey, i + 2), options_.other_api_keys[i]));
  }
  const auto read = std::make_shared<const ApiKeys>(std::move(keys));
  {
    std::lock_guard lock(mutex_);
    keys_ = read;
  }
  accounts_.ForgetKeysBut(*read);  // now that who comes finds the others no more
  return {};
}

std::shared_ptr<const ApiKeys> Access::keys() const {
  std::lock_guard lock(mutex_);
  return keys_;
}

bool Access::IsOpen(const Route& route) const {
  if (!options_.open_routes) return route.about_server;
  const auto& open = *options_.open_routes;
  return std::find(open.begin(), open.end(), route.path) != open.end();
}

// A page under another's name that leads here has the same origin too (DNS rebinding); it has no
// key, and an address is no name.
bool Access::IsFromOwnPage(const HttpRequest& head, const ApiKeys& keys) const {
  return options_.webui && IsSameOrigin(head.origin, head.host) &&
         (!keys.empty() || hosts_.IsOurs(head.host));
}

// `route`: null if there is none.
std::optional<ApiError> Access::CheckCaller(HttpRequest& head, const Route* route) {
  if (!hosts_.Allows(head.host)) {
    return ApiError{403,
                    fmt::format("This server is not called {}: fathom serve --allowed-hosts NAME "
                                "lets it be.",
                                Printable(head.host, 64)),
                    "permission_error", "", "host_not_allowed"};
  }
  const bool open = route != nullptr && IsOpen(*route);
  const auto keys = this->keys();
  const bool about_server = route != nullptr && route->about_server;
  // What is open and more than the server's state is no page's either: a browser behind the wall
  // would fetch it for anybody.
  if (!(open && about_server) && !head.origin.empty() && !cors_.Allows(head.origin) &&
      !IsFromOwnPage(head, *keys)) {
    return CorsPolicy::NotAllowed();
  }
  const ApiKey* key = keys->Find(KeyOf(head));
  if (!keys->empty() && key == nullptr && !open) {
    return ApiError{
        401, "The API key is missing or wrong: send Authorization: Bearer KEY, or X-Api-Key: KEY.",
        "authentication_error", "", "invalid_api_key"};
  }
  if (about_server) return std::nullopt;
  SetCaller(head, key);
  return std::nullopt;
}

// `key`: null for who has none.
void Access::SetCaller(HttpRequest& head, const ApiKey* key) {
  head.owner = key != nullptr ? "key " + key->name : "address " + head.address;
  const bool named = key != nullptr && !key->name.starts_with(kSharedKey);
  head.client = named ? accounts_.OfKey(*key) : accounts_.OfAddress(head.address);
}

void Access::NameCaller(HttpRequest& head) {
  const auto keys = this->keys();
  SetCaller(head, keys->Find(KeyOf(head)));
}

std::shared_ptr<ClientMemory> Access::MemoryOf(const std::string& address) {
  const std::shared_ptr<ClientAccount> account = accounts_.OfAddress(address);
  return {account, &account->memory()};
}

std::optional<HttpResponse> Access::CheckHead(HttpRequest& head) {
  const Route* route = FindRoute(head.path);
  if (route != nullptr && route->endpoint == Endpoint::kWebPage && !options_.webui) route = nullptr;
  std::string methods = route != nullptr && route->method == "GET" ? "GET, HEAD" : "POST";
  if (route != nullptr && !route->also.empty()) methods.append(", ").append(route->also);
  // Browsers ask without the key.
  if (route != nullptr && head.method == "OPTIONS" && hosts_.Allows(head.host)) {
    return cors_.Preflight(head, methods);
  }
  if (auto error = CheckCaller(head, route)) return ErrorResponse(*error);
  if (route == nullptr) {
    return ErrorResponse({404, NoSuchPath(head.path), "invalid_request_error", "", "not_found"});
  }
  if (head.method != route->method && head.method != route->also &&
      !(head.method == "HEAD" && route->method == "GET")) {
    HttpResponse response =
        ErrorResponse({405, fmt::format("{} takes {} only.", route->path, route->method),
                       "invalid_request_error", "", "method_not_allowed"});
    response.headers.emplace_back("Allow", methods);
    return response;
  }
  if (route->method == "POST" && !IsJson(head, cors_)) {
    return ErrorResponse({415,
                          "The body must be sent with Content-Type: application/json (curl: -H "
                          "'Content-Type: application/json').",
                          "invalid_request_error", "", "unsupported_media_type"});
  }
  if (head.client) {
    if (auto error = head.client->BeginRequest()) return ErrorResponse(*error);
  }
  return std::nullopt;
}

}  // namespace fathom
