// Prometheus metrics of connections, requests and the process: of a server whether it has a model
// or is still loading one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/openai_response.h"

namespace fathom {

// THREAD: any.
class HttpMetrics {
 public:
  HttpMetrics();
  ~HttpMetrics();

  void OnHttp(std::string_view method, std::string_view handler, int status, double seconds);
  // `reason`: see NameOfRefusal.
  void OnRefusedConnection(const char* reason);
  void OnFailedHandshake();             // of TLS
  void SetRequestMemory(size_t bytes);  // what requests hold of it now
  void OnKey(const std::string& name, int status, const Usage& usage);

  // The exposition text, with what the process takes as it is now.
  std::string Render();

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace fathom
