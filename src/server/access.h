// Who may ask what: by the name that the server is called, the page that asks, the key, and what
// its holder has asked lately.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "server/api_keys.h"
#include "server/client_accounts.h"
#include "server/cors.h"
#include "server/http.h"
#include "server/options.h"
#include "server/routes.h"

namespace fathom {

// THREAD: any.
class Access {
 public:
  // kInvalidArgument for a file of keys, or a route, that cannot be taken. `options` outlives it.
  static Result<std::unique_ptr<Access>> Make(const ServerOptions& options);

  // What can be refused before the body is read: unknown paths, methods, keys, content types. Also
  // answers OPTIONS. Says who asks in `head`.
  std::optional<HttpResponse> CheckHead(HttpRequest& head);
  // Of a request that is refused whoever asks: says in `head` who does, for log and metrics.
  void NameCaller(HttpRequest& head);
  // What the requests of an address hold, of those that no account is asked for.
  std::shared_ptr<ClientMemory> MemoryOf(const std::string& address);
  // Reads the file of keys again; one that cannot be taken changes nothing.
  Status RereadKeys();

  const CorsPolicy& cors() const { return cors_; }

 private:
  explicit Access(const ServerOptions& options);
  bool IsOpen(const Route& route) const;
  bool IsFromOwnPage(const HttpRequest& head, const ApiKeys& keys) const;
  std::optional<ApiError> CheckCaller(HttpRequest& head, const Route* route);
  void SetCaller(HttpRequest& head, const ApiKey* key);
  std::shared_ptr<const ApiKeys> keys() const;

  const ServerOptions& options_;
  const CorsPolicy cors_;
  const HostPolicy hosts_;
  const SteadyClock clock_;
  ClientAccounts accounts_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeys> keys_;  // guarded by mutex_
};

}  // namespace fathom
