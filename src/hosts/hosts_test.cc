#include "hosts/hosts.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <numeric>
#include <thread>

#include "base/test_folder.h"
#include "hosts/hello.h"
#include "parallel/rank_groups.h"

namespace fathom {
namespace {

using Pieces = MeetingRanks::Pieces;

// A port that was free a moment ago.
uint16_t FreePort() {
  return Listener::On("127.0.0.1", 0).value().port();
}

class HostsTest : public testing::Test {
 protected:
  HostsOptions Options(int count, int index) {
    return {.count = count,
            .index = index,
            .address = "127.0.0.1",
            .port = port_,
            .secret_file = Secret("0123456789abcdef"),
            .patience = std::chrono::seconds(20)};
  }
  std::string Secret(const std::string& text) {
    folder_.Write(text, text + "\n");
    return folder_.path() + "/" + text;
  }
  // Each on a thread of its own.
  static std::vector<std::unique_ptr<Hosts>> JoinAll(const std::vector<HostsOptions>& options,
                                                     int ranks) {
    std::vector<std::unique_ptr<Hosts>> hosts(options.size());
    OnEach(options.size(), [&](size_t i) {
      hosts[i] = Hosts::Join(options[i], {{"build", "1"}}, ranks).value();
    });
    return hosts;
  }
  static void OnEach(size_t count, const std::function<void(size_t)>& body) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  }

  TestFolder folder_;
  const uint16_t port_ = FreePort();
};

// The first of two hosts waits, and whatever came meanwhile, the other one finds it.
class WaitingHostTest : public HostsTest {
 protected:
  void TearDown() override {
    const auto second = Hosts::Join(Options(2, 1), {{"build", "1"}}, 2);
    EXPECT_TRUE(second.ok()) << second.status().message();
    waits_.join();
  }
  Socket Stranger() { return Socket::Connect("127.0.0.1", port_, std::chrono::seconds(5)).value(); }

 private:
  std::unique_ptr<Hosts> first_;
  std::thread waits_{[this] { first_ = Hosts::Join(Options(2, 0), {{"build", "1"}}, 2).value(); }};
};

TEST_F(HostsTest, AllSayTheLeastOfWhatEachSays) {
  const auto hosts = JoinAll({Options(3, 0), Options(3, 1), Options(3, 2)}, 6);
  OnEach(3, [&](size_t i) {
    for (int64_t round = 0; round < 20; ++round) {
      const auto at = static_cast<int64_t>(i);
      EXPECT_EQ(hosts[i]->Least(100 * round + (at + round) % 3).value(), 100 * round);
    }
  });
}

TEST_F(HostsTest, AllHearWhatEachSays) {
  const auto hosts = JoinAll({Options(3, 0), Options(3, 1), Options(3, 2)}, 6);
  const std::vector<std::string> expected = {"", std::string("\0\xff", 2),
                                             std::string(Hosts::kMostSaid, 'x')};
  OnEach(3, [&](size_t i) { EXPECT_EQ(hosts[i]->Share(expected[i]).value(), expected); });
  for (const auto& host : hosts) EXPECT_EQ(host->interface(), "lo");
}

TEST_F(HostsTest, WhatWasSaidHoldsThoughTheFirstHostHasLeft) {
  for (int64_t round = 0; round < 100; ++round) {
    auto hosts = JoinAll({Options(2, 0), Options(2, 1)}, 2);
    OnEach(2, [&](size_t i) {
      const Result<int64_t> least = hosts[i]->Least(round);
      EXPECT_TRUE(least.ok()) << least.status().message();
      if (i == 0) hosts[i].reset();
    });
  }
}

// Of any size, pieces without a byte too.
TEST_F(HostsTest, RanksOfAllHostsReadWhatEachBrought) {
  constexpr int kRanks = 6, kRounds = 50;
  const auto hosts = JoinAll({Options(3, 0), Options(3, 1), Options(3, 2)}, kRanks);
  std::vector<JoinedRanks> joined(3);
  OnEach(3, [&](size_t i) {
    joined[i] = JoinedRanks::Join({.tensor = kRanks}, [&](std::span<const int> ranks) {
                  return hosts[i]->GroupOf(ranks);
                }).value();
  });
  const auto size_of = [](int rank, int round) {
    return static_cast<size_t>(round % 3 == 2 ? rank * 300'000 : (rank + round) % 4);
  };
  std::atomic<int> read = 0;
  OnEach(kRanks, [&](size_t at) {
    const int rank = static_cast<int>(at);
    auto& me = static_cast<MeetingRanks&>(*joined[at / 2].Of(rank).tensor);
    ASSERT_EQ(me.rank(), rank);
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<int> first(size_of(rank, round), rank), second(3, rank * round);
      const auto all = me.Meet({std::as_bytes(std::span(first)), std::as_bytes(std::span(second))},
                               [&](int r, size_t piece) -> MeetingRanks::Bounds {
                                 const size_t bytes =
                                     4 * (piece == 0 ? size_of(r, round) : size_t{3});
                                 return {bytes, bytes};
                               });
      ASSERT_EQ(all.size(), kRanks);
      for (int r = 0; r < kRanks; ++r) {
        const Pieces& pieces = all[static_cast<size_t>(r)];
        const std::vector<int> of_r(size_of(r, round), r), also(3, r * round);
        const auto equal = [](std::span<const std::byte> piece, const std::vector<int>& numbers) {
          return std::ranges::equal(piece, std::as_bytes(std::span(numbers)));
        };
        ASSERT_TRUE(equal(pieces[0], of_r) && equal(pieces[1], also)) << rank << " " << r;
        ++read;
      }
      me.Part();
    }
  });
  EXPECT_EQ(read, kRanks * kRanks * kRounds);
}

TEST_F(HostsTest, WhoWaitsForALostHostGivesUp) {
  auto hosts = JoinAll({Options(2, 0), Options(2, 1)}, 2);
  std::vector<JoinedRanks> joined(2);
  OnEach(2, [&](size_t i) {
    joined[i] = JoinedRanks::Join({.tensor = 2}, [&](std::span<const int> ranks) {
                  return hosts[i]->GroupOf(ranks);
                }).value();
  });
  Status why;
  std::atomic<bool> told = false;
  hosts[0]->OnEnd([&](Status status) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    why = std::move(status);
    told = true;
  });
  std::thread waits([&] {
    auto& me = static_cast<MeetingRanks&>(*joined[0].Of(0).tensor);
    EXPECT_TRUE(me.Meet({{}}, {}).empty());
    EXPECT_TRUE(told) << "a rank went on with what did not come";
  });
  hosts[1]->Fail(Internal("a fault"));
  waits.join();
  hosts[0].reset();  // its threads have said what they had to say
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_NE(why.message().find("closed"), std::string::npos) << why.message();
}

// Its host lives, and says so.
TEST_F(HostsTest, ARankOfAnotherHostThatDoesNotComeIsNamed) {
  auto hosts = JoinAll({Options(2, 0), Options(2, 1)}, 4);
  std::vector<JoinedRanks> joined(2);
  OnEach(2, [&](size_t i) {
    joined[i] = JoinedRanks::Join({.tensor = 4}, [&](std::span<const int> ranks) {
                  return hosts[i]->GroupOf(ranks);
                }).value();
  });
  std::optional<Status> why;
  hosts[0]->OnEnd([&](Status status) { why = std::move(status); });
  OnEach(3, [&](size_t i) {  // the last rank is not there
    auto& me = static_cast<MeetingRanks&>(*joined[i / 2].Of(static_cast<int>(i)).tensor);
    me.GiveUpAfter(i == 1 ? 0.1 : 30, nullptr);
    EXPECT_TRUE(me.Meet({{}}, {}).empty());
  });
  hosts[0].reset();
  ASSERT_TRUE(why);
  EXPECT_EQ(why->message(), "rank 1 has waited 0.1 s for rank 3 of host 1");
}

// Before there is room for it, and by name.
TEST_F(HostsTest, APieceOfAnotherSizeIsRefused) {
  for (const size_t brought : {size_t{8}, size_t{24}, size_t{1} << 20}) {
    auto hosts = JoinAll({Options(2, 0), Options(2, 1)}, 2);
    std::vector<JoinedRanks> joined(2);
    OnEach(2, [&](size_t i) {
      joined[i] = JoinedRanks::Join({.tensor = 2}, [&](std::span<const int> ranks) {
                    return hosts[i]->GroupOf(ranks);
                  }).value();
    });
    std::optional<Status> why;
    hosts[0]->OnEnd([&](Status status) { why = std::move(status); });
    OnEach(2, [&](size_t i) {
      auto& me = static_cast<MeetingRanks&>(*joined[i].Of(static_cast<int>(i)).tensor);
      const std::vector<std::byte> mine(i == 0 ? 16 : brought);
      const auto all = me.Meet({mine}, [&](int, size_t) -> MeetingRanks::Bounds {
        return {i == 0 ? size_t{16} : 0, i == 0 ? size_t{20} : 16};
      });
      if (i == 0) {
        EXPECT_TRUE(all.empty());
      }
    });
    hosts[0].reset();
    ASSERT_TRUE(why);
    EXPECT_EQ(why->code(), StatusCode::kDataLoss);
    EXPECT_TRUE(why->message().starts_with(fmt::format(
        "rank 1 of host 1 brings {} bytes as its piece 0, and 16 to 20 are expected", brought)))
        << why->message();
  }
}

TEST_F(HostsTest, TheFirstHostsLeaveIsTheEndAndAnOthersALoss) {
  auto hosts = JoinAll({Options(2, 0), Options(2, 1)}, 2);
  std::optional<Status> first, second;
  hosts[0]->OnEnd([&](Status status) { first = std::move(status); });
  hosts[1]->OnEnd([&](Status status) { second = std::move(status); });
  hosts[0].reset();
  hosts[1].reset();
  EXPECT_TRUE(second && second->ok());

  hosts = JoinAll({Options(2, 0), Options(2, 1)}, 2);
  hosts[0]->OnEnd([&](Status status) { first = std::move(status); });
  hosts[1].reset();
  hosts[0].reset();
  EXPECT_EQ(first->message(), "host 1 has left");
}

TEST_F(WaitingHostTest, StrangersAreRefusedByName) {
  HostsOptions wrong = Options(2, 1);
  wrong.secret_file = Secret("another secret, as long");
  const Status stranger = Hosts::Join(wrong, {{"build", "1"}}, 2).status();
  EXPECT_NE(stranger.message().find("has another secret"), std::string::npos) << stranger.message();
  const Status older = Hosts::Join(Options(2, 1), {{"build", "0"}}, 2).status();
  EXPECT_EQ(older.message(), "build differs: host 1 has 0, this host 1");
  Socket silent = Stranger();
  Socket noisy = Stranger();
  const std::string noise(10'000, 'x');
  EXPECT_TRUE(noisy.Send(std::as_bytes(std::span(noise))).ok());
}

// Byte by byte, it would take over twenty seconds.
TEST_F(WaitingHostTest, AStrangerThatSpeaksSlowlyIsNotHeardToTheEnd) {
  Socket slow = Stranger();
  const auto began = std::chrono::steady_clock::now();
  const auto took = [&] { return std::chrono::steady_clock::now() - began; };
  while (took() < std::chrono::seconds(15) && slow.Send(std::array{std::byte{'f'}}).ok()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  EXPECT_LT(took(), std::chrono::seconds(10));
}

// Those that come meanwhile wait, and whoever comes then is heard.
TEST_F(WaitingHostTest, ALackOfDescriptorsIsWaitedOut) {
  (void)Stranger();  // it listens
  Socket other(socket(AF_INET, SOCK_STREAM, 0));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the first visitor is forgotten
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(other.descriptor());
  close(next);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
  testing::internal::CaptureStderr();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(other.descriptor(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  std::byte greeting[1];
  other.SetTimeout(std::chrono::seconds(4));
  EXPECT_TRUE(other.Receive(greeting).ok());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("no host can be accepted for now"), std::string::npos) << said;
  EXPECT_EQ(said.find("no host can"), said.rfind("no host can"));  // once
}

// Who does not know the secret has a proof of it all the same: the one that it is sent.
TEST_F(WaitingHostTest, AProofThatIsSentBackIsNone) {
  Socket mirror = Stranger();
  mirror.SetTimeout(std::chrono::seconds(5));
  for (const size_t bytes : {size_t{47}, size_t{32}}) {  // greeting and random number, proof
    std::vector<std::byte> said(bytes);
    ASSERT_TRUE(mirror.Receive(said).ok());
    ASSERT_TRUE(mirror.Send(said).ok());
  }
  (void)SendFrame(mirror, 1, Text(Hello{.index = 9}));
  EXPECT_EQ(ReceiveFrame(mirror, kMaxHelloBytes).status().code(), StatusCode::kUnavailable);
}

TEST_F(HostsTest, AFirstHostThatNamesOthersWronglyIsRefused) {
  for (const char* entry :
       {"[4294967297,\"a\",1]", "[-1,\"a\",1]", "[1,\"a\",65536]", "[1,2,3]", "[1]", "1"}) {
    const std::string answer = fmt::format("{{\"error\":\"\",\"hosts\":[{}]}}", entry);
    EXPECT_EQ(ParseAnswer(answer).status().code(), StatusCode::kDataLoss) << entry;
  }
  Listener listener = Listener::On("127.0.0.1", port_).value();
  std::thread first([&] {
    Socket socket = listener.Accept().value();
    ASSERT_TRUE(ProveSecret(socket, "0123456789abcdef", HostSide::kListens).ok());
    ASSERT_TRUE(ReceiveFrame(socket, kMaxHelloBytes).ok());
    ASSERT_TRUE(SendFrame(socket, 2, WelcomeText({{2, {"127.0.0.1", 1}}})).ok());
  });
  const Status status = Hosts::Join(Options(3, 2), {{"build", "1"}}, 3).status();
  first.join();
  EXPECT_EQ(status.message(), "the first host names no host 1");
}

TEST_F(HostsTest, FlagsThatMakeNoHostsAreRefused) {
  const auto message = [&](HostsOptions options, int ranks) {
    return CheckHosts(options, ranks).message();
  };
  EXPECT_NE(message(Options(2, 2), 2).find("the last is 1"), std::string::npos);
  EXPECT_NE(message(Options(2, 0), 3).find("3 ranks cannot be dealt evenly"), std::string::npos);
  EXPECT_NE(message(Options(2, 0), 1).find("1 rank cannot be dealt evenly"), std::string::npos);
  EXPECT_NE(message({.count = 2}, 2).find("--master-addr"), std::string::npos);
  EXPECT_NE(message({.count = 2, .address = "a"}, 2).find("--hosts-secret-file"),
            std::string::npos);
  EXPECT_EQ(message({}, 7), "");
  EXPECT_NE(message({.headless = true}, 1).find("--node-rank"), std::string::npos);
  EXPECT_NE(ReadHostSecret(Secret("short")).status().message().find("16"), std::string::npos);
}

}  // namespace
}  // namespace fathom
