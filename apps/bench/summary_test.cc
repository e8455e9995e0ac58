#include "summary.h"

#include <gtest/gtest.h>

#include "event_stream.h"

namespace fathom {
namespace {

RequestRecord Record(double sent, double first, double last, int32_t tokens) {
  return {.sent_s = sent,
          .first_s = first,
          .last_s = last,
          .inter_token_s = {},
          .prompt_tokens = 10,
          .output_tokens = tokens,
          .wanted_tokens = 5};
}

TEST(Quantile, InterpolatesAsNumpyDoes) {
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(Quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.99), 3.97);
  EXPECT_DOUBLE_EQ(Quantile(values, 1), 4);
  EXPECT_DOUBLE_EQ(Quantile(std::vector<double>{7}, 0.99), 7);
}

TEST(Distribution, MeanMedianDeviation) {
  const Distribution d = DistributionOf({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_DOUBLE_EQ(d.median, 2.5);
  EXPECT_DOUBLE_EQ(d.deviation, std::sqrt(1.25));
  EXPECT_EQ(DistributionOf({}).p99, 0);
}

TEST(Summary, CountsAndRates) {
  std::vector<RequestRecord> records = {Record(0, 1, 5, 5), Record(1, 1.5, 3.5, 3),
                                        Record(2, 2.25, 2.25, 1)};
  records[0].inter_token_s = {1, 1, 1, 1};
  records[1].inter_token_s = {0.5f, 1.5f};
  records.push_back({.error = "no", .sent_s = 3, .first_s = 0, .last_s = 10, .inter_token_s = {}});
  records.push_back({.error = "no", .sent_s = 3, .first_s = 0, .last_s = 9, .inter_token_s = {}});

  const LoadSummary s = Summarize(records, {.tpot_ms = 1000, .e2el_ms = 4000});
  EXPECT_EQ(s.completed, 3);
  EXPECT_EQ(s.failed, 2);
  EXPECT_EQ(s.errors, std::vector<std::string>{"no"});
  EXPECT_EQ(s.short_answers, 2);
  EXPECT_DOUBLE_EQ(s.duration_s, 10);
  EXPECT_DOUBLE_EQ(s.PerSecond(s.output_tokens), 0.9);
  EXPECT_EQ(s.prompt_tokens, 30);
  EXPECT_EQ(s.good, 2);  // the first one took 5 s
  EXPECT_DOUBLE_EQ(s.ttft_ms.median, 500);
  EXPECT_DOUBLE_EQ(s.tpot_ms.mean, 1000);  // (4/4 + 2/2) / 2; one token has none
  EXPECT_DOUBLE_EQ(s.itl_ms.mean, 1000);
  EXPECT_DOUBLE_EQ(s.e2el_ms.p99, 4950);

  const boost::json::object json = ToJson(s);
  EXPECT_DOUBLE_EQ(json.at("request_goodput").as_double(), 0.2);
  EXPECT_DOUBLE_EQ(json.at("total_token_throughput").as_double(), 3.9);
  EXPECT_FALSE(ToJson(Summarize(records, {})).contains("request_goodput"));
}

TEST(Summary, OfNothing) {
  const LoadSummary s = Summarize({}, {});
  EXPECT_EQ(s.duration_s, 0);
  EXPECT_EQ(s.PerSecond(s.completed), 0);
}

std::vector<std::string> Events(std::string_view body, size_t piece) {
  EventStream stream;
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size(); at += piece) {
    EXPECT_TRUE(stream.Push(body.substr(at, piece),
                            [&](std::string_view data) { events.emplace_back(data); }));
  }
  return events;
}

TEST(EventStream, AnySplitGivesTheSameEvents) {
  const std::string_view body =
      ": comment\n\ndata: {\"a\": 1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\nid: 3\n\n"
      "data: \r\rdata: [DONE]\n\ndata: unfinished\n";
  const std::vector<std::string> expected = {"{\"a\": 1}", "two\nlines", "", "[DONE]"};
  for (size_t piece = 1; piece <= body.size(); ++piece) EXPECT_EQ(Events(body, piece), expected);
}

TEST(EventStream, LongEventsAreRefused) {
  EventStream stream;
  const std::string piece = "data: " + std::string(1 << 20, 'x') + "\n";
  const auto ignore = [](std::string_view) {};
  EXPECT_TRUE(stream.Push(piece, ignore));
  EXPECT_TRUE(stream.Push(piece, ignore));
  EXPECT_TRUE(stream.Push(piece, ignore));
  EXPECT_FALSE(stream.Push(piece, ignore));
}

}  // namespace
}  // namespace fathom
