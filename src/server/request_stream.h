// The hand-over from the engine's thread to the requests that wait for its tokens.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "engine/messages.h"

namespace fathom {

class RequestStream;

// Sends each output of an engine to the RequestStream that asked for it. Lives longer than both.
class EngineOutputs {
 public:
  // The engine's output callback. Does not block; outputs nobody waits for are dropped.
  // THREAD: the engine's.
  void Deliver(std::vector<RequestOutput> outputs);

 private:
  friend class RequestStream;
  struct Inbox {
    std::mutex mutex;
    std::function<void()> wake;  // guarded by mutex; empty once the stream is gone
    // Guarded by mutex:
    std::deque<std::pair<size_t, RequestOutput>> outputs;
    size_t bytes = 0;                    // of them
    std::unique_ptr<MemoryClaim> claim;  // holds these where they are many; null: never
    Status Hold(size_t now);             // has the claim hold so many bytes
    Status failure;                      // there was no room; nothing comes behind
  };
  struct Address {
    std::shared_ptr<Inbox> inbox;
    size_t index;
  };

  std::atomic<uint64_t> next_id_{1};
  std::mutex mutex_;
  std::unordered_map<RequestId, Address> addresses_;  // guarded by mutex_
};

// The engine requests of one HTTP request. What has not ended when this goes is cancelled.
// THREAD: one at a time.
class RequestStream {
 public:
  // `wake` is called when Next() has something again: on the engine's thread, must not block.
  // `claim`: holds what waits to be taken; null: nothing does.
  RequestStream(EngineOutputs& outputs, EngineClient& engine, std::function<void()> wake,
                std::unique_ptr<MemoryClaim> claim = nullptr);
  ~RequestStream();
  RequestStream(const RequestStream&) = delete;

  // Gives each request its id and submits it. All or none; errors as EngineClient::Submit.
  Status Submit(std::vector<GenerateRequest> requests);
  // Of the request that was at `index` in Submit: no more output of it is needed.
  void Cancel(size_t index);
  // What has come, output by output, each with the index of its request; nullopt: no more as yet.
  std::optional<std::pair<size_t, RequestOutput>> Next();
  // Why outputs are missing: there was no room for them.
  Status failure() const;
  // The most that waited and was claimed, and what was to be when there was no room.
  size_t peak() const;
  size_t asked() const;

 private:
  void Forget(size_t index);

  EngineOutputs& outputs_;
  EngineClient& engine_;
  const std::shared_ptr<EngineOutputs::Inbox> inbox_;
  struct Sent {
    RequestId id;
    bool live;
  };
  std::vector<Sent> sent_;
};

}  // namespace fathom
