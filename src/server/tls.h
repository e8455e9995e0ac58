// TLS as a server speaks it, by OpenSSL.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "server/options.h"

namespace fathom {

// Certificates for new connections. THREAD: any.
class Tls {
 public:
  using Context = boost::asio::ssl::context;

  // kInvalidArgument, naming the flag, for files that cannot be used.
  static Result<std::unique_ptr<Tls>> Read(TlsFiles files);

  // Reads the files again; what cannot be used changes nothing. Connections keep what they have.
  Status Reread();
  std::shared_ptr<Context> context() const;

 private:
  explicit Tls(TlsFiles files) : files_(std::move(files)) {}

  const TlsFiles files_;
  mutable std::mutex mutex_;
  std::shared_ptr<Context> context_;  // guarded by mutex_
};

}  // namespace fathom
