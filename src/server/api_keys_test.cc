#include "server/api_keys.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/test_folder.h"
#include "server/client_accounts.h"

namespace fathom {
namespace {

class SetClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 1'000'000'000;
};

std::string Refusal(const std::string& text) {
  const Result<ApiKeys> keys = ApiKeys::Parse(text);
  return keys.ok() ? "taken" : keys.status().message();
}

TEST(ApiKeys, HaveNamesAndLimits) {
  const ApiKeys keys =
      ApiKeys::Parse(
          "# who may\n\n"
          "anna  sk-anna requests-per-minute=60 tokens-per-minute=1000 # of lab\r\n"
          "\tben\tsk-ben in-flight=2")
          .value();
  ASSERT_NE(keys.Find("sk-anna"), nullptr);
  EXPECT_EQ(keys.Find("sk-anna")->name, "anna");
  EXPECT_EQ(keys.Find("sk-anna")->limits,
            (KeyLimits{.requests_per_minute = 60, .tokens_per_minute = 1000}));
  EXPECT_EQ(keys.Find("sk-ben")->limits, (KeyLimits{.in_flight = 2}));
  for (const char* wrong : {"", "sk-ann", "sk-anna ", "sk-annas", "anna", "#"}) {
    EXPECT_EQ(keys.Find(wrong), nullptr) << wrong;
  }
}

TEST(ApiKeys, AByteOrderMarkIsNoPartOfAName) {
  const std::string mark = "\xEF\xBB\xBF";
  const ApiKeys keys = ApiKeys::Parse(mark + "anna sk-anna\nben sk-ben\n").value();
  ASSERT_NE(keys.Find("sk-anna"), nullptr);
  EXPECT_EQ(keys.Find("sk-anna")->name, "anna");
  EXPECT_TRUE(Refusal("anna sk-anna\n" + mark + "ben sk-ben\n").starts_with("line 2: a name has"));
}

TEST(ApiKeys, WhatCannotBeTakenNamesItsLineAndNoKey) {
  EXPECT_NE(Refusal("").find("there is no key in it"), std::string::npos);
  EXPECT_NE(Refusal("# only\n").find("there is no key in it"), std::string::npos);
  EXPECT_TRUE(Refusal("a k1\nb\n").starts_with("line 2: b: a key has"));
  EXPECT_TRUE(Refusal("a k1\na k2\n").starts_with("line 2: a: the name is there already"));
  EXPECT_TRUE(Refusal("a k1\nb k1\n").starts_with("line 2: b: a has the same key"));
  EXPECT_TRUE(Refusal("a/b secret").starts_with("line 1: a name has"));
  EXPECT_TRUE(Refusal("--api-key secret").starts_with("line 1: a name has"));
  for (const char* limit : {"in-flight=0", "in-flight=-1", "in-flight=x", "in-flight=", "in-flight",
                            "tokens-per-minute=9999999999999999999", "secret2"}) {
    const std::string why = Refusal(std::string("a secret ") + limit);
    EXPECT_TRUE(why.starts_with("line 1: ")) << why;
    EXPECT_EQ(why.find("secret"), std::string::npos) << why;
  }
  EXPECT_TRUE(Refusal("a k requests-per-minute=0").ends_with("leave it out for no limit"));
  // Without it another limit holds, which "no limit" denied.
  EXPECT_TRUE(Refusal("a k in-flight=0")
                  .ends_with("leave it out for that of "
                             "--max-requests-per-client"));
  EXPECT_EQ(Refusal("a k requests-per-minute=1 requests-per-minute=2"),
            "line 1: requests-per-minute is there more than once");
  std::string many;
  for (int i = 0; i <= 1024; ++i) many += "n" + std::to_string(i) + " k" + std::to_string(i) + "\n";
  EXPECT_TRUE(Refusal(many).starts_with("line 1025: there may be 1024 keys"));
}

TEST(ApiKeys, SharedOnesAreHeldToTheSame) {
  ApiKeys keys;
  EXPECT_TRUE(keys.AddShared("--api-key", "sk-a").ok());
  for (const char* wrong : {"", " ", "sk a", "sk-b ", "sk-\xC3\xA4", "sk-\n"}) {
    EXPECT_EQ(keys.AddShared("--api-key 2", wrong).message(),
              "--api-key 2: a key has 1 to 512 visible ASCII signs")
        << wrong;
  }
}

TEST(ApiKeys, AreReadFromAPlainFile) {
  const TestFolder folder;
  const std::string path = folder.path() + "/keys";
  EXPECT_NE(ApiKeys::Read(path).status().message().find("there is no such file"),
            std::string::npos);
  EXPECT_NE(ApiKeys::Read("/dev/zero").status().message().find("no plain file"), std::string::npos);
  std::ofstream(path) << "anna sk-anna\n";
  EXPECT_NE(ApiKeys::Read(path).value().Find("sk-anna"), nullptr);
  std::ofstream(path) << std::string((1 << 20) + 1, '#');
  EXPECT_NE(ApiKeys::Read(path).status().message().find("larger than 1 MiB"), std::string::npos);
}

TEST(ClientAccount, SpendsItsMinuteAndGetsItBack) {
  SetClock clock;
  ClientAccount account(1, "anna", clock);
  account.SetLimits({.requests_per_minute = 2, .tokens_per_minute = 600, .in_flight = 9});
  EXPECT_FALSE(account.BeginRequest());
  EXPECT_FALSE(account.BeginRequest());
  const auto refused = account.BeginRequest();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->retry_after_s, 30);
  clock.now_ns += 30'000'000'000;
  EXPECT_FALSE(account.BeginRequest());
  account.SpendTokens(900);  // its share, and half of the next
  clock.now_ns += 30'000'000'000;
  const auto in_debt = account.BeginRequest();
  ASSERT_TRUE(in_debt);
  EXPECT_NE(in_debt->message.find("600 tokens a minute"), std::string::npos);
  clock.now_ns += 1'000'000'000;
  EXPECT_FALSE(account.BeginRequest());
  using Header = std::pair<std::string, std::string>;
  const auto headers = account.Headers();
  ASSERT_EQ(headers.size(), 6u);
  EXPECT_EQ(headers[0], Header("x-ratelimit-limit-requests", "2"));
  EXPECT_EQ(headers[1], Header("x-ratelimit-remaining-requests", "0"));
  EXPECT_EQ(headers[3], Header("x-ratelimit-limit-tokens", "600"));
  EXPECT_EQ(headers[4], Header("x-ratelimit-remaining-tokens", "10"));
  EXPECT_EQ(headers[5], Header("x-ratelimit-reset-tokens", "59000ms"));
}

TEST(ClientAccount, NewLimitsForgiveNothing) {
  SetClock clock;
  ClientAccount account(1, "anna", clock);
  account.SetLimits({.requests_per_minute = 2, .in_flight = 9});
  EXPECT_FALSE(account.BeginRequest());
  account.SetLimits({.requests_per_minute = 1, .in_flight = 9});
  EXPECT_TRUE(account.BeginRequest());
  account.SetLimits({.requests_per_minute = 3, .in_flight = 9});
  EXPECT_FALSE(account.BeginRequest());
  EXPECT_FALSE(account.BeginRequest());
  EXPECT_TRUE(account.BeginRequest());
  account.SetLimits({.in_flight = 9});
  EXPECT_FALSE(account.BeginRequest());
  EXPECT_TRUE(account.Headers().empty());
}

TEST(ClientAccount, RefusalsAreHeldBackOneAfterTheOther) {
  SetClock clock;
  ClientAccount account(1, "", clock), other(2, "", clock);
  const auto hold = [](ClientAccount& of) {
    return of.HoldRefusalMs(/*gap_ms=*/5, /*most_ms=*/12);
  };
  for (const int64_t ms : {0, 5, 10, 12, 12}) EXPECT_EQ(hold(account), ms);
  EXPECT_EQ(hold(other), 0);
  clock.now_ns += 10'000'000;
  EXPECT_EQ(hold(account), 7);
  clock.now_ns += 12'000'000;  // a gap since that one was due
  EXPECT_EQ(hold(account), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(account.HoldRefusalMs(/*gap_ms=*/0, /*most_ms=*/12), 0);
}

TEST(ClientAccounts, AreCountedByKeyOrByAddress) {
  SetClock clock;
  ClientAccounts accounts(/*max_in_flight=*/3, clock);
  const ApiKeys keys = ApiKeys::Parse("anna k1\nben k2 in-flight=1").value();
  const auto anna = accounts.OfKey(*keys.Find("k1"));
  const auto ben = accounts.OfKey(*keys.Find("k2"));
  const auto here = accounts.OfAddress("127.0.0.1");
  EXPECT_EQ(accounts.OfKey(*keys.Find("k1")), anna);
  EXPECT_EQ(accounts.OfAddress("127.0.0.1"), here);
  EXPECT_NE(accounts.OfAddress("127.0.0.2"), here);
  EXPECT_EQ(here->Take(4)->status, 400);  // never fits
  EXPECT_FALSE(here->Take(2));
  EXPECT_EQ(here->Take(2)->status, 429);
  {
    PlacesInFlight places(here, 2), moved = std::move(places);
    EXPECT_EQ(moved.client(), here->id());
  }
  EXPECT_EQ(here->in_flight(), 0);
  EXPECT_FALSE(ben->Take(1));
  EXPECT_TRUE(ben->Take(1)->message.starts_with("1 answer is in flight for the key ben, "));
  accounts.ForgetKeysBut(ApiKeys::Parse("ben k2").value());
  EXPECT_EQ(accounts.OfKey(*keys.Find("k2")), ben);
  EXPECT_NE(accounts.OfKey(*keys.Find("k1")), anna);
}

}  // namespace
}  // namespace fathom
