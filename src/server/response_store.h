// Answers of /v1/responses that may be asked for again, or gone on with.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace fathom {

// Holds the last so many, within so many bytes; what was used longest ago goes first. Ids are drawn
// at random and cannot be guessed, so that who knows one may use it. THREAD: any.
class ResponseStore {
 public:
  struct Stored {
    std::string id;
    std::string response;  // JSON
    std::string messages;  // JSON: the conversation so far, as a chat request has it
    std::shared_ptr<std::atomic<bool>> cancel;  // while it is being generated
  };

  ResponseStore(size_t max_entries, size_t max_bytes)
      : max_entries_(max_entries), max_bytes_(max_bytes) {}

  static std::string NewId();  // "resp_" and 32 hexadecimal digits

  // In place of what has the same id.
  void Put(Stored stored);
  std::optional<Stored> Get(const std::string& id);
  bool Erase(const std::string& id);

 private:
  void EraseLocked(const std::string& id);

  const size_t max_entries_, max_bytes_;
  std::mutex mutex_;
  std::list<Stored> entries_;  // guarded by mutex_; used last first
  std::unordered_map<std::string, std::list<Stored>::iterator> by_id_;  // guarded by mutex_
  size_t bytes_ = 0;                                                    // guarded by mutex_
};

}  // namespace fathom
