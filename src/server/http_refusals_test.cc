// Clients that are told to wait (429), and what waits with them.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/http_server_fixture.h"

namespace fathom {
namespace {

class HttpRefusalsTest : public HttpServerTest {
 protected:
  static constexpr int kUntilTheEnd = 3'600'000;  // of the server, which ends the wait

  // Whose second refusal waits.
  void ServeAndHoldBack(int64_t max_requests = 1, int gap_ms = kUntilTheEnd) {
    Serve({.max_requests_per_client = max_requests,
           .refusal_gap_ms = gap_ms,
           .refusal_delay_ms = gap_ms});
  }
  void Occupy(Client& busy) {
    busy.Request("POST", kChat, Chat("nothing"));
    ASSERT_TRUE(Eventually([&] { return engine_->live() == 1; }));
  }
};

// It counted as refused, and kept its connection, for as long as the refusal was held back.
TEST_F(HttpRefusalsTest, AClientThatLeavesWhileItsRefusalIsHeldBackIsNoticed) {
  ServeAndHoldBack();
  Client busy(port_), first(port_), second(port_);
  Occupy(busy);
  EXPECT_EQ(first.Ask("POST", kChat, Chat("hi")).status, 429);
  EXPECT_TRUE(Eventually([&] { return Counted("429"); }));
  second.Request("POST", kChat, Chat("hi"));
  second.Close();
  EXPECT_TRUE(Eventually([&] { return Counted("499"); }));
  EXPECT_TRUE(Counted("429"));
}

TEST_F(HttpRefusalsTest, AHalfClosedClientGetsTheRefusalThatIsHeldBack) {
  ServeAndHoldBack();
  Client busy(port_), first(port_), second(port_);
  Occupy(busy);
  EXPECT_EQ(first.Ask("POST", kChat, Chat("hi")).status, 429);
  second.Request("POST", kChat, Chat("hi"));
  second.EndSending();
  EXPECT_EQ(second.ReadUntil("HTTP/1.1"), "HTTP/1.1");  // while it waits
  server_->Stop();
  EXPECT_TRUE(second.ReadUntil("\r\n\r\n").starts_with(" 429 "));
}

// Who is watched while it waits is read on.
TEST_F(HttpRefusalsTest, WhatComesWhileARefusalIsHeldBackIsTheNextRequest) {
  ServeAndHoldBack(/*max_requests=*/1, /*gap_ms=*/20);
  Client busy(port_), client(port_);
  Occupy(busy);
  for (int i = 0; i < 4; ++i) client.Request("POST", kChat, Chat("hi"));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(client.Read().status, 429) << i;
  EXPECT_EQ(client.Ask("GET", "/v1/models").status, 200);
}

// Its place among the client's requests was taken for as long as its refusal was held back.
TEST_F(HttpRefusalsTest, ARequestThatTheEngineRefusesHoldsNothingWhileItsAnswerWaits) {
  ServeAndHoldBack(/*max_requests=*/2);
  Client busy(port_), first(port_), second(port_);
  Occupy(busy);
  engine_->SetFull(true);
  EXPECT_EQ(first.Ask("POST", kChat, Chat("hi")).status, 429);
  second.Request("POST", kChat, Chat("hi"));
  ASSERT_TRUE(Eventually([&] { return engine_->refused() == 2; }));
  engine_->SetFull(false);
  std::vector<std::unique_ptr<Client>> others;  // the first may be as quick as its place's end
  for (int i = 0; i < 100 && engine_->live() == 1; ++i) {
    others.push_back(std::make_unique<Client>(port_));
    others.back()->Request("POST", kChat, Chat("nothing"));
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(engine_->live(), 2);
}

}  // namespace
}  // namespace fathom
