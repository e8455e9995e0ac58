#include "serve_limits.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "engine_flags.h"
#include "serve_flags.h"
#include "server/json_body.h"

namespace fathom {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class ServeLimits : public testing::Test {
 protected:
  // What `fathom serve` would say to `flags`; "": it takes them, and they stand in options_.
  std::string Refusal(const std::string& flags) {
    CLI::App command;
    options_ = {};
    AddServerFlags(command, &options_);
    AddEngineFlags(command, &options_.engine);
    try {
      command.parse("model --max-num-seqs 32 " + flags);
      SettleLimits(command, &options_);
    } catch (const CLI::Error& error) {
      return error.what();
    }
    return "";
  }
  std::string Memory(const char* of, size_t bytes, const std::string& more = "") {
    return Refusal("--max-" + std::string(of) + "-memory-bytes " + std::to_string(bytes) + more);
  }

  ServeOptions options_;
};

TEST_F(ServeLimits, WhatIsNotToldFollows) {
  ASSERT_EQ(Refusal("--max-connections 100 --max-queue 8 --request-timeout 5"), "");
  EXPECT_EQ(options_.server.max_connections_per_client, 100u);
  EXPECT_EQ(options_.server.max_requests, 40);
  ASSERT_EQ(Memory("request", 100 * kMiB), "");
  EXPECT_EQ(MaxRequestMemory(options_.server.max_body_bytes), 75 * kMiB);
  ASSERT_EQ(Memory("client", 40 * kMiB), "");
  EXPECT_EQ(MaxRequestMemory(options_.server.max_body_bytes), 40 * kMiB);
}

TEST_F(ServeLimits, WhatIsToldAndNeverReachedIsRefused) {
  EXPECT_EQ(Refusal("--max-connections 100 --max-connections-per-client 100"), "");
  EXPECT_EQ(
      Refusal("--max-connections 100 --max-connections-per-client 101"),
      "--max-connections-per-client: 101 is more than --max-connections 100 allows: say 100 at "
      "most, or --max-connections 101");
  EXPECT_EQ(Refusal("--max-queue 8 --dp 2 --max-requests-per-client 72"), "");
  EXPECT_EQ(Refusal("--max-queue 8 --dp 2 --max-requests-per-client 73"),
            "--max-requests-per-client: 73 is more than --max-queue 8 beside the 64 that run "
            "(--max-num-seqs) allows: say 72 at most, or --max-queue 9");
  EXPECT_NE(Refusal("--request-timeout 20 --queue-timeout 21"), "");
  EXPECT_EQ(Refusal("--request-timeout 0 --queue-timeout 21"), "");  // any time
}

// The least that was named had room for bodies of a byte.
TEST_F(ServeLimits, TheLeastMemoryHasRoomForABodyOfSomePages) {
  constexpr size_t kBody = size_t{64} << 10, kOne = MaxRequestMemory(kBody);
  constexpr size_t kAll = LeastRequestMemory(kBody);
  for (const auto& [of, least] : {std::pair{"request", kAll}, {"client", kOne}}) {
    EXPECT_NE(Memory(of, least - 1).find("64 KiB: say " + std::to_string(least) + " at least"),
              std::string::npos);
    EXPECT_EQ(Memory(of, least), "");
    EXPECT_EQ(options_.server.max_body_bytes, kBody);
    EXPECT_EQ(Memory(of, least - 1, " --max-body-bytes 1"), "");
  }
}

// Or the server would refuse a body's limit that was made of its memory.
TEST(LeastRequestMemory, IsTheLeast) {
  for (size_t body = 0; body < 100; ++body) {
    const size_t all = LeastRequestMemory(body), one = MaxRequestMemory(body);
    EXPECT_GE(all - all / 4, one) << body;
    EXPECT_LT(all - 1 - (all - 1) / 4, one) << body;
  }
}

}  // namespace
}  // namespace fathom
