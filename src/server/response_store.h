// Answers of /v1/responses that may be asked for again, or gone on with.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace fathom {

// Holds so many answers, within so many bytes. Each has an owner, and is there for no other. Where
// room is wanted, the owner with the most gives way, with what was used longest ago, so that none
// can drive out what others have. THREAD: any.
class ResponseStore {
 public:
  struct Stored {
    std::string owner;
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
  // Null: there is none, or it is another's.
  std::shared_ptr<const Stored> Get(const std::string& owner, const std::string& id);
  bool Erase(const std::string& owner, const std::string& id);

 private:
  struct Kept {
    std::shared_ptr<const Stored> stored;
    uint64_t used;  // by uses_
  };
  using Entry = std::list<Kept>::iterator;
  struct Held {
    std::list<Kept> entries;  // used last first
    size_t bytes = 0;
  };

  const Entry* FindLocked(const std::string& owner, const std::string& id) const;
  void EraseLocked(Entry entry);
  void MakeRoomLocked();

  const size_t max_entries_, max_bytes_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::unordered_map<std::string, Held> by_owner_;
  std::unordered_map<std::string, Entry> by_id_;
  size_t bytes_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace fathom
