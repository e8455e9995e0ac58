#include "hosts/lane_communicator.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "base/activity.h"

namespace fathom {
namespace {

// More than any step's activations: a peer that announces more is broken.
constexpr uint64_t kMaxBytes = uint64_t{4} << 30;

// Advances past what has moved. True: all of it has.
bool Advance(std::vector<std::span<const std::byte>>& pieces, size_t& at, size_t moved) {
  while (at < pieces.size() && moved >= pieces[at].size()) moved -= pieces[at++].size();
  if (at < pieces.size()) pieces[at] = pieces[at].subspan(moved);
  return at == pieces.size();
}

}  // namespace

struct LaneCommunicator::Exchange {
  Exchange(size_t with, Lanes& lanes, const Pieces& mine, const BoundsOf& bounds_of,
           std::vector<std::byte>& arrived)
      : rank(with),
        bounds(bounds_of),
        name(lanes.names[with]),
        socket(lanes.sockets[with]),
        out_sizes(mine.size()),
        in_sizes(mine.size()),
        body(arrived) {
    for (size_t i = 0; i < mine.size(); ++i) out_sizes[i] = mine[i].size();
    out.push_back(std::as_bytes(std::span(out_sizes)));
    out.insert(out.end(), mine.begin(), mine.end());
    in = std::as_writable_bytes(std::span(in_sizes));
    sent = Advance(out, at, 0);
    if (in.empty()) received = true;
  }

  Status Fails(const char* what) const {
    return Unavailable("{} {}: {}", what, name, std::strerror(errno));
  }

  Status SendSome() {
    while (!sent) {
      const ssize_t n =
          send(socket.descriptor(), out[at].data(), out[at].size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) return {};
      if (n < 0) return Fails("sending to");
      sent = Advance(out, at, static_cast<size_t>(n));
    }
    return {};
  }

  Status ReceiveSome() {
    while (!received) {
      const ssize_t n = recv(socket.descriptor(), in.data(), in.size(), MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) return {};
      if (n < 0) return Fails("receiving from");
      if (n == 0) return Unavailable("{} has closed its lane", name);
      in = in.subspan(static_cast<size_t>(n));
      if (!in.empty()) continue;
      if (sizes_known) {
        received = true;
      } else {
        TRY(MakeRoom());
      }
    }
    return {};
  }

  Status MakeRoom() {
    sizes_known = true;
    uint64_t bytes = 0;
    for (size_t i = 0; i < in_sizes.size(); ++i) {
      const uint64_t size = in_sizes[i];
      const Bounds may = bounds ? bounds(static_cast<int>(rank), i) : Bounds{0, kMaxBytes};
      if (size < may.least || size > may.most) {
        return DataLoss("{} brings {} bytes as its piece {}, and {} to {} are expected", name, size,
                        i, may.least, may.most);
      }
      if (size > kMaxBytes - bytes) {
        return DataLoss("{} announces more than {} bytes", name, kMaxBytes);
      }
      bytes += size;
    }
    if (body.size() < bytes) body.resize(bytes);
    in = std::span(body).first(bytes);
    received = bytes == 0;
    return {};
  }

  Pieces Arrived() const {
    Pieces pieces;
    size_t begin = 0;
    for (const uint64_t size : in_sizes) {
      pieces.push_back(std::span(body).subspan(begin, size));
      begin += size;
    }
    return pieces;
  }

  const size_t rank;
  const BoundsOf& bounds;
  const std::string& name;
  Socket& socket;
  std::vector<uint64_t> out_sizes, in_sizes;
  std::vector<std::span<const std::byte>> out;
  size_t at = 0;  // of `out`
  std::span<std::byte> in;
  std::vector<std::byte>& body;
  bool sizes_known = false, sent = false, received = false;
};

LaneCommunicator::LaneCommunicator(int rank, std::shared_ptr<MeetingPlace> place,
                                   std::vector<size_t> local, std::shared_ptr<Lanes> lanes,
                                   std::function<void(Status)> on_failure)
    : MeetingRanks(rank, static_cast<int>(lanes->sockets.size())),
      place_(std::move(place)),
      local_(std::move(local)),
      place_here_(static_cast<size_t>(
          std::find(local_.begin(), local_.end(), static_cast<size_t>(rank)) - local_.begin())),
      lanes_(std::move(lanes)),
      on_failure_(std::move(on_failure)),
      all_(lanes_->sockets.size()),
      arrived_(lanes_->sockets.size()) {}

void LaneCommunicator::Abort() {
  lanes_->Shutdown();
  place_->GiveUp();
}

std::span<const MeetingRanks::Pieces> LaneCommunicator::Meet(Pieces mine, const BoundsOf& bounds) {
  if (Status status = ExchangeWithOthers(mine, bounds); !status.ok()) {
    on_failure_(Status(status.code(), status.message() + DescribeActivity()));
    Abort();
    return {};
  }
  place_->brought[place_here_] = std::move(mine);
  std::vector<size_t> late;
  const bool all_here = place_->Arrive(place_here_, Until(), late);
  GiveUpOnLocal(std::move(late));
  if (!all_here) return {};
  for (size_t i = 0; i < local_.size(); ++i) all_[local_[i]] = place_->brought[i];
  return all_;
}

void LaneCommunicator::Part() {
  std::vector<size_t> late;
  place_->Leave(place_here_, Until(), late);
  GiveUpOnLocal(std::move(late));
}

void LaneCommunicator::GiveUpOnLocal(std::vector<size_t> late) {
  for (size_t& here : late) here = local_[here];
  if (!late.empty()) GiveUpOn(late);
}

Status LaneCommunicator::ExchangeWithOthers(const Pieces& mine, const BoundsOf& bounds) {
  std::deque<Exchange> exchanges;  // which hold views of themselves
  for (size_t rank = 0; rank < lanes_->sockets.size(); ++rank) {
    if (!lanes_->sockets[rank].open()) continue;
    exchanges.emplace_back(rank, *lanes_, mine, bounds, arrived_[rank]);
  }
  const Clock::time_point until = Until();
  for (;;) {
    std::vector<pollfd> waiting;
    for (Exchange& e : exchanges) {
      TRY(e.SendSome());
      TRY(e.ReceiveSome());
      const int events = (e.sent ? 0 : POLLOUT) | (e.received ? 0 : POLLIN);
      if (events != 0) waiting.push_back({e.socket.descriptor(), static_cast<short>(events), 0});
    }
    if (waiting.empty()) break;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) {
      std::string names;
      for (const Exchange& e : exchanges) {
        if (!e.sent || !e.received) names += (names.empty() ? "" : ", ") + e.name;
      }
      return Unavailable("{}", HasWaitedFor(names));
    }
    const auto ms = static_cast<int>(std::min<int64_t>(left.count(), 1 << 30));
    if (poll(waiting.data(), waiting.size(), ms) < 0 && errno != EINTR) {
      return Unavailable("waiting for ranks of other hosts: {}", std::strerror(errno));
    }
  }
  for (const Exchange& e : exchanges) all_[e.rank] = e.Arrived();
  return {};
}

}  // namespace fathom
