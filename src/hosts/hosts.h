// The hosts of an engine: how they find each other, and what joins their ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "hosts/handshake.h"
#include "hosts/hello.h"
#include "hosts/lane_communicator.h"
#include "hosts/link.h"
#include "hosts/socket.h"
#include "parallel/communicator.h"

namespace fathom {

struct HostsOptions {
  int count = 1, index = 0;            // of hosts, and which one this is
  bool headless = false;               // as all but the first are anyway
  std::string address;                 // of the first one, which the others reach and it listens on
  uint16_t port = 29500;               // as PyTorch's launchers have it
  std::string secret_file;             // ReadHostSecret
  std::chrono::seconds patience{600};  // for others to come
};

// kInvalidArgument, in words of the flags. The first: whether ranks can be dealt to so many hosts.
Status CheckDealt(int hosts, int ranks);
Status CheckHosts(const HostsOptions& options, int ranks);

// THREAD: any, but where it says otherwise.
class Hosts {
 public:
  // Waits until all have come, know the secret, and are alike. Hosts have equally many of the
  // `ranks`, one after another. One that differs is refused, which it and the first one say by
  // name; the first one goes on waiting.
  static Result<std::unique_ptr<Hosts>> Join(const HostsOptions& options, const HostFacts& facts,
                                             int ranks);
  // Tells the others that this host ends as it should, if nothing has failed.
  ~Hosts();

  int count() const { return options_.count; }
  int index() const { return options_.index; }
  bool first() const { return options_.index == 0; }
  // Over which this host listens to the others: Listener.
  std::string interface() const { return listener_.interface(); }
  int ranks_each() const { return ranks_each_; }
  int HostOf(int rank) const { return rank / ranks_each_; }
  bool Here(int rank) const { return HostOf(rank) == options_.index; }

  // For JoinedRanks: of ranks that are elsewhere it has nothing. All hosts call it with the same
  // groups in the same order.
  Result<std::vector<std::unique_ptr<Communicator>>> GroupOf(std::span<const int> ranks);

  // Waits for all hosts, however long they load, and returns what each says, kMostSaid bytes at
  // most. Each calls it equally often, from one thread.
  Result<std::vector<std::string>> Share(std::string mine);
  Result<int64_t> Least(int64_t mine);  // of what each says, likewise
  static constexpr size_t kMostSaid = 255;

  // Messages of the engine, from HostLink::kFirstOfOthers on: between the first host and each other
  // one, one at a time. Those that came before Listen() wait for it; once it returns, what listened
  // before is not called any more.
  using OnMessage = std::function<Status(int host, uint32_t kind, std::string bytes)>;
  void Listen(OnMessage on_message);
  void Send(int host, uint32_t kind, std::string bytes);

  // `on_end` is called once, when a host is lost or has left, or the first one took its leave (OK):
  // from then on nothing of this holds, and ranks that meet give up. At once if that is past. It
  // must neither block nor fail this; null: none, from the return on.
  void OnEnd(std::function<void(Status)> on_end);
  void Fail(Status why);  // as if a host were lost: the others hear of it

 private:
  struct LaneKey {
    int group, from, to;
    auto operator<=>(const LaneKey&) const = default;
  };

  Hosts(const HostsOptions& options, std::string secret, int ranks_each);
  Status Gather(const HostFacts& facts);  // the first one
  Status Enter(const HostFacts& facts);   // the others
  // Proves the secret to who connected, and hears what it came for.
  Status Welcome(Socket socket);
  Status WelcomeHost(Socket socket, int index, uint16_t port, const HostFacts& facts);
  void AcceptLoop();
  void AddLink(int host, Socket socket);
  Result<Socket> LaneTo(const LaneKey& key);
  Status Take(int host, uint32_t kind, std::string bytes);
  void End(Status why);

  const HostsOptions options_;
  const std::string secret_;
  const int ranks_each_;
  HostFacts facts_;
  Listener listener_;
  int groups_ = 0;  // that GroupOf() has made. THREAD: of start-up

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  struct Visitor {
    Socket socket;
    uint16_t port = 0;  // where it listens
  };
  std::map<int, Visitor> gathered_;  // by host, until all are there:
  bool complete_ = false;
  std::map<LaneKey, Socket> waiting_;            // lanes that others have opened
  std::map<int, std::deque<std::string>> said_;  // Share(), by host
  std::optional<Status> ended_;
  std::vector<std::weak_ptr<Lanes>> lanes_;
  std::vector<std::weak_ptr<MeetingPlace>> places_;

  std::mutex end_mutex_;
  std::function<void(Status)> on_end_;  // guarded by end_mutex_

  std::mutex messages_mutex_;
  // Guarded by messages_mutex_:
  struct Message {
    int host;
    uint32_t kind;
    std::string bytes;
  };
  std::vector<Message> early_;
  OnMessage on_message_;

  HostAddresses addresses_;                         // of hosts before this one; set by Enter
  std::map<int, std::unique_ptr<HostLink>> links_;  // by host; set before others run
  std::atomic<bool> leaving_ = false;
  std::thread accepting_;
};

}  // namespace fathom
