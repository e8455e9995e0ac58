#include "hosts/hosts.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <list>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "hosts/hello.h"

namespace fathom {
namespace {

constexpr std::chrono::seconds kHandshake{5};  // all of it
constexpr std::chrono::milliseconds kBetweenAccepts{100};
constexpr size_t kMostVisits = 256;  // at a time
constexpr uint32_t kHello = 1, kAnswer = 2, kSaid = 2;

}  // namespace

Status CheckDealt(int hosts, int ranks) {
  if (ranks % hosts == 0) return {};
  return InvalidArgument(
      "--nnodes {}: {} cannot be dealt evenly; the sizes of --tp, --pp and --dp multiplied must be "
      "a multiple of it",
      hosts, Counted(ranks, "rank"));
}

Status CheckHosts(const HostsOptions& o, int ranks) {
  if (o.headless && o.index == 0) {
    return InvalidArgument(
        "--headless: host 0 answers requests; say which other one this is with "
        "--node-rank, or leave it out");
  }
  if (o.index >= o.count) {
    return InvalidArgument("--node-rank {}: of --nnodes {} the last is {}", o.index, o.count,
                           o.count - 1);
  }
  if (o.count == 1) return {};
  TRY(CheckDealt(o.count, ranks));
  if (o.address.empty()) {
    return InvalidArgument("--nnodes {} needs --master-addr, an address of the first host",
                           o.count);
  }
  if (!o.secret_file.empty()) return {};
  return InvalidArgument(
      "--nnodes {} needs --hosts-secret-file, a file with the same secret on every host; openssl "
      "rand -hex 32 makes one",
      o.count);
}

Hosts::Hosts(const HostsOptions& options, std::string secret, int ranks_each)
    : options_(options), secret_(std::move(secret)), ranks_each_(ranks_each) {}

Result<std::unique_ptr<Hosts>> Hosts::Join(const HostsOptions& options, const HostFacts& facts,
                                           int ranks) {
  TRY(CheckHosts(options, ranks));
  std::string secret = TRY(ReadHostSecret(options.secret_file));
  std::unique_ptr<Hosts> hosts(new Hosts(options, std::move(secret), ranks / options.count));
  TRY(hosts->first() ? hosts->Gather(facts) : hosts->Enter(facts));
  return hosts;
}

Hosts::~Hosts() {
  leaving_ = true;
  listener_.Shutdown();
  if (accepting_.joinable()) accepting_.join();
  std::map<int, std::unique_ptr<HostLink>> links;  // whose threads may look at links_ to the end
  {
    std::lock_guard lock(mutex_);
    links.swap(links_);
    for (const auto& [host, link] : links) {
      if (!ended_) link->Leave();
    }
  }
}

Status Hosts::Gather(const HostFacts& facts) {
  facts_ = facts;
  listener_ = TRY(Listener::On(options_.address, options_.port));
  accepting_ = std::thread([this] { AcceptLoop(); });
  LOG_INFO("waiting for {} on {} port {}", Counted(options_.count - 1, "other host"),
           options_.address, listener_.port());
  std::unique_lock lock(mutex_);
  const size_t others = static_cast<size_t>(options_.count - 1);
  if (!changed_.wait_for(lock, options_.patience, [&] { return gathered_.size() == others; })) {
    return Unavailable("{} came within {} s, where {} expected",
                       Counted(static_cast<int64_t>(gathered_.size()), "other host"),
                       options_.patience.count(),
                       others == 1 ? "1 was" : fmt::format("{} were", others));
  }
  HostAddresses addresses;
  for (const auto& [host, visitor] : gathered_) {
    addresses[host] = {visitor.socket.peer_address(), visitor.port};
  }
  const std::string answer = WelcomeText(addresses);
  complete_ = true;
  std::map<int, Visitor> gathered = std::move(gathered_);
  gathered_.clear();
  for (auto& [host, visitor] : gathered) TRY(SendFrame(visitor.socket, kAnswer, answer));
  lock.unlock();
  for (auto& [host, visitor] : gathered) AddLink(host, std::move(visitor.socket));
  return {};
}

Status Hosts::Enter(const HostFacts& facts) {
  Socket socket = TRY(Socket::Connect(options_.address, options_.port, options_.patience));
  listener_ = TRY(Listener::On(socket.local_address(), 0));
  socket.SetDeadline(kHandshake);
  TRY(ProveSecret(socket, secret_, HostSide::kConnects));
  TRY(SendFrame(socket, kHello,
                Text({.index = options_.index, .port = listener_.port(), .facts = facts})));
  socket.SetTimeout(options_.patience);  // others may come later
  const Frame frame = TRY(ReceiveFrame(socket, kMaxHelloBytes));
  addresses_ = TRY(ParseAnswer(frame.bytes));
  for (int host = 1; host < options_.index; ++host) {
    if (!addresses_.contains(host)) return DataLoss("the first host names no host {}", host);
  }
  addresses_[0] = {options_.address, options_.port};
  accepting_ = std::thread([this] { AcceptLoop(); });
  AddLink(0, std::move(socket));
  return {};
}

void Hosts::AcceptLoop() {
  // Each on a thread of its own: one that is silent keeps nobody out.
  struct Visit {
    std::thread thread;
    std::atomic<bool> over = false;
  };
  std::list<Visit> visits;
  const auto forget = [](Visit& visit) {
    if (visit.over) visit.thread.join();
    return visit.over.load();
  };
  bool warned = false;
  while (!leaving_) {
    Result<Socket> socket = listener_.Accept();
    if (socket.status().code() == StatusCode::kUnavailable) break;
    if (!socket.ok()) {
      // Those that have come go on, and give back what is lacking here.
      if (!std::exchange(warned, true)) {
        LOG_WARNING("no host can be accepted for now: {}", socket.status().message());
      }
      std::this_thread::sleep_for(kBetweenAccepts);
      continue;
    }
    warned = false;
    visits.remove_if(forget);
    if (visits.size() >= kMostVisits) continue;  // its connection is closed
    Visit& visit = visits.emplace_back();
    visit.thread = std::thread([this, &visit, at = *std::move(socket)]() mutable {
      const std::string who = at.peer();
      const Status status = Welcome(std::move(at));
      if (!status.ok()) LOG_ERROR("a host was refused, {}: {}", who, status.message());
      visit.over = true;
    });
  }
  for (Visit& visit : visits) visit.thread.join();
}

Status Hosts::Welcome(Socket socket) {
  socket.SetDeadline(kHandshake);
  TRY(ProveSecret(socket, secret_, HostSide::kListens));
  const Frame frame = TRY(ReceiveFrame(socket, kMaxHelloBytes));
  Result<Hello> hello = ParseHello(frame.bytes, socket.peer());
  if (!hello.ok()) return hello.status();
  if (!hello->lane) {
    return WelcomeHost(std::move(socket), hello->index, hello->port, hello->facts);
  }
  socket.SetTimeout({});
  std::lock_guard lock(mutex_);
  if (waiting_.size() >= 4096) return ResourceExhausted("lanes that nobody waits for");
  waiting_[{hello->group, hello->from, hello->to}] = std::move(socket);
  changed_.notify_all();
  return {};
}

Status Hosts::WelcomeHost(Socket socket, int index, uint16_t port, const HostFacts& facts) {
  Status status = CompareFacts(facts_, facts, fmt::format("host {}", index));
  std::lock_guard lock(mutex_);
  if (status.ok() && (!first() || index < 1 || index >= options_.count)) {
    status = InvalidArgument("--node-rank {} among --nnodes {}", index, options_.count);
  }
  const auto before = gathered_.find(index);  // one that has gone has made room
  if (status.ok() && (complete_ || (before != gathered_.end() && !before->second.socket.Ended()))) {
    status = InvalidArgument("--node-rank {} is taken: another host has come with it", index);
  }
  if (!status.ok()) {
    (void)SendFrame(socket, kAnswer, RefusalText(status.message()));
    return status;
  }
  socket.SetTimeout(kHandshake);
  gathered_[index] = {std::move(socket), port};
  changed_.notify_all();
  return {};
}

void Hosts::AddLink(int host, Socket socket) {
  auto link = std::make_unique<HostLink>(
      std::move(socket), fmt::format("host {}", host),
      [this, host](uint32_t kind, std::string bytes) { return Take(host, kind, std::move(bytes)); },
      [this, host](Status why) {
        // The first host's leave is the end; anybody else's is a loss.
        if (why.ok() && host != 0) why = Unavailable("host {} has left", host);
        End(std::move(why));
      });
  std::lock_guard lock(mutex_);
  links_[host] = std::move(link);
}

Result<Socket> Hosts::LaneTo(const LaneKey& key) {
  const int there = HostOf(key.to);
  if (there < options_.index) {
    const HostAddress& address = addresses_.at(there);
    Socket socket = TRY(Socket::Connect(address.host, address.port, kHandshake));
    socket.SetDeadline(kHandshake);
    TRY(ProveSecret(socket, secret_, HostSide::kConnects));
    TRY(SendFrame(socket, kHello,
                  Text({.lane = true, .group = key.group, .from = key.from, .to = key.to})));
    socket.SetTimeout({});
    return socket;
  }
  const LaneKey theirs{key.group, key.to, key.from};
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(
      lock, options_.patience, [&] { return ended_.has_value() || waiting_.contains(theirs); });
  if (ended_ || !came) return Unavailable("rank {} of host {} has not come", key.to, there);
  return std::move(waiting_.extract(theirs).mapped());
}

Result<std::vector<std::unique_ptr<Communicator>>> Hosts::GroupOf(std::span<const int> ranks) {
  const int group = groups_++;
  std::vector<size_t> local;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (Here(ranks[i])) local.push_back(i);
  }
  const auto place = std::make_shared<MeetingPlace>(local.size());
  std::vector<std::unique_ptr<Communicator>> members(ranks.size());
  for (const size_t i : local) {
    const auto lanes = std::make_shared<Lanes>(ranks.size());
    for (size_t other = 0; other < ranks.size(); ++other) {
      if (Here(ranks[other])) continue;
      lanes->sockets[other] = TRY(LaneTo({group, ranks[i], ranks[other]}));
      lanes->names[other] = fmt::format("rank {} of host {}", ranks[other], HostOf(ranks[other]));
    }
    members[i] = std::make_unique<LaneCommunicator>(static_cast<int>(i), place, local, lanes,
                                                    [this](Status why) { Fail(std::move(why)); });
    std::lock_guard lock(mutex_);
    lanes_.push_back(lanes);
    places_.push_back(place);
  }
  return members;
}

Result<std::vector<std::string>> Hosts::Share(std::string mine) {
  CHECK(mine.size() <= kMostSaid, "{} bytes for all hosts", mine.size());
  constexpr size_t kEntry = kMostSaid + 1;  // its size, and what is said
  mine.insert(mine.begin(), static_cast<char>(mine.size()));
  mine.resize(kEntry);
  if (!first()) Send(0, kSaid, mine);
  std::unique_lock lock(mutex_);
  const auto all_said = [this] {
    return std::ranges::all_of(links_,
                               [this](const auto& link) { return !said_[link.first].empty(); });
  };
  changed_.wait(lock, [&] { return ended_.has_value() || all_said(); });
  // The first host may leave as soon as it has said the last of it.
  if (!all_said()) return ended_->ok() ? Unavailable("the first host has left") : *ended_;
  std::string all = first() ? mine : "";
  for (auto& [host, said] : said_) {
    all += said.front();
    said.pop_front();
  }
  lock.unlock();
  if (all.size() != kEntry * static_cast<size_t>(count())) {
    return DataLoss("{} bytes of what {} hosts say", all.size(), count());
  }
  if (first()) {
    for (const auto& [host, link] : links_) link->Send(kSaid, all);
  }
  std::vector<std::string> each;
  for (size_t at = 0; at < all.size(); at += kEntry) {
    each.push_back(all.substr(at + 1, static_cast<unsigned char>(all[at])));
  }
  return each;
}

Result<int64_t> Hosts::Least(int64_t mine) {
  int64_t least = mine;
  for (const std::string& said : TRY(Share(std::to_string(mine)))) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(said.data(), said.data() + said.size(), number);
    if (error != std::errc() || end != said.data() + said.size())
      return DataLoss("a number was expected");
    least = std::min(least, number);
  }
  return least;
}

Status Hosts::Take(int host, uint32_t kind, std::string bytes) {
  std::unique_lock lock(mutex_);
  if (kind == kSaid) {
    if (said_[host].size() >= 16) return DataLoss("more was said than asked for");
    said_[host].push_back(std::move(bytes));
    changed_.notify_all();
    return {};
  }
  lock.unlock();
  if (kind < HostLink::kFirstOfOthers) return DataLoss("a message of kind {}", kind);
  std::lock_guard listening(messages_mutex_);
  if (on_message_) return on_message_(host, kind, std::move(bytes));
  if (early_.size() >= 64) return DataLoss("messages before any was asked for");
  early_.push_back({host, kind, std::move(bytes)});
  return {};
}

void Hosts::Listen(OnMessage on_message) {
  Status status;
  {
    std::lock_guard lock(messages_mutex_);
    on_message_ = std::move(on_message);
    for (Message& message : early_) {
      if (status.ok()) {
        status = on_message_(message.host, message.kind, std::move(message.bytes));
      }
    }
    early_.clear();
  }
  if (!status.ok()) Fail(std::move(status));
}

void Hosts::Send(int host, uint32_t kind, std::string bytes) {
  links_.at(host)->Send(kind, std::move(bytes));
}

void Hosts::OnEnd(std::function<void(Status)> on_end) {
  std::lock_guard ending(end_mutex_);
  on_end_ = std::move(on_end);
  std::unique_lock lock(mutex_);
  const std::optional<Status> ended = ended_;
  lock.unlock();
  if (ended && on_end_) on_end_(*ended);
}

void Hosts::Fail(Status why) {
  End(std::move(why));
}

void Hosts::End(Status why) {
  // Who comes second waits: once this returns, whoever had to know has been told.
  std::lock_guard ending(end_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = why;
  }
  // Before ranks that meet are let go: what they would go on with means nothing.
  if (on_end_) on_end_(why);
  std::lock_guard lock(mutex_);
  for (const auto& lanes : lanes_) {
    if (const auto held = lanes.lock()) held->Shutdown();
  }
  for (const auto& place : places_) {
    if (const auto held = place.lock()) held->GiveUp();
  }
  for (const auto& [host, link] : links_) {
    if (!why.ok()) link->Shutdown();  // they hear of it at once
  }
  changed_.notify_all();
}

}  // namespace fathom
