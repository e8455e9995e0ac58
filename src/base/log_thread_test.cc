#include "base/log_thread.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <string>

#include "base/log_event.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;  // NOLINT: of tests only

// stderr is a pipe, read or not as a test likes.
class LogThreadTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SetLogLevel("info"));
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC), 0);
    saved_ = dup(STDERR_FILENO);
    dup2(pipe_[1], STDERR_FILENO);
    close(pipe_[1]);
    std::signal(SIGPIPE, SIG_IGN);  // NOLINT: what a server does
  }
  void TearDown() override {
    RestoreStderr();
    if (pipe_[0] >= 0) close(pipe_[0]);
  }
  void RestoreStderr() {
    if (saved_ < 0) return;
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    saved_ = -1;
  }
  void StopReading() {
    close(pipe_[0]);
    pipe_[0] = -1;
  }
  std::string ReadAll() {
    std::string text;
    char bytes[4096];
    for (ssize_t n; (n = read(pipe_[0], bytes, sizeof bytes)) > 0;) text.append(bytes, n);
    return text;
  }

  int pipe_[2] = {-1, -1};
  int saved_ = -1;
};

TEST_F(LogThreadTest, WritesJsonIfTold) {
  ASSERT_TRUE(SetLogFormat("json"));
  EXPECT_FALSE(SetLogFormat("xml"));
  LOG_WARNING("a \"quoted\" \\ line\nand\ta next \xff\x01");
  const LogField fields[] = {{"status", int64_t{200}}, {"ms", 1.5}, {"path", std::string("/a\"b")}};
  LogEvent(LogLevel::kInfo, "an event", fields);
  LogEvent(LogLevel::kDebug, "too quiet", fields);
  ASSERT_TRUE(SetLogFormat("text"));
  LogEvent(LogLevel::kInfo, "an event", fields);
  RestoreStderr();
  const std::string text = ReadAll();
  EXPECT_EQ(text.find("{\"time\":\"20"), 0u);
  EXPECT_EQ(text.substr(32, 4), "Z\",\"") << text;
  EXPECT_NE(text.find(R"("level":"warning","message":"a \"quoted\" \\ line\nand\ta next ??"})"
                      "\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(R"("message":"an event","status":200,"ms":1.5,"path":"/a\"b"})"
                      "\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("too quiet"), std::string::npos);
  EXPECT_NE(text.find(" info an event\n"), std::string::npos);
}

TEST_F(LogThreadTest, WhatIsWrittenMakesRoom) {
  const int64_t before = DroppedLogLines();
  const LogThread thread(/*max_bytes=*/4096);
  const std::string filler(200, 'x');
  for (int i = 0; i < 100; ++i) {
    LOG_INFO("{}", filler);
    ASSERT_EQ(DroppedLogLines(), before) << i;
    char byte = 0;
    while (byte != '\n') ASSERT_EQ(read(pipe_[0], &byte, 1), 1);
  }
}

TEST_F(LogThreadTest, WritesEverythingInOrder) {
  {
    const LogThread thread;
    for (int i = 0; i < 100; ++i) LOG_INFO("line {} of a log", i);
  }
  LOG_INFO("line 100 of a log");
  RestoreStderr();
  const std::string text = ReadAll();
  size_t at = 0;
  for (int i = 0; i <= 100; ++i) {
    at = text.find(fmt::format(" line {} of a log\n", i), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
}

TEST_F(LogThreadTest, AReaderThatStopsMakesNobodyWait) {
  const int64_t before = DroppedLogLines();
  const std::string filler(200, 'x');
  constexpr int kLines = 20'000;
  std::future<std::string> all;
  const auto began = std::chrono::steady_clock::now();
  {
    const LogThread thread(size_t{256} << 10);
    for (int i = 0; i < kLines; ++i) LOG_INFO("{}", filler);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
    EXPECT_GT(DroppedLogLines() - before, kLines / 2);
    all = std::async(std::launch::async, [this] { return ReadAll(); });
  }
  RestoreStderr();
  const std::string text = all.get();
  const int64_t dropped = DroppedLogLines() - before;
  EXPECT_NE(text.find(fmt::format("({} log lines were dropped", dropped)), std::string::npos);
  int64_t written = 0;
  for (size_t at = 0; (at = text.find(filler, at)) != std::string::npos; ++at) ++written;
  EXPECT_EQ(written + dropped, kLines);
}

TEST_F(LogThreadTest, EndsThoughNobodyReads) {
  const auto began = std::chrono::steady_clock::now();
  {
    const LogThread thread;
    for (int i = 0; i < 2'000; ++i) LOG_INFO("{}", std::string(200, 'x'));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, 3s);
}

TEST_F(LogThreadTest, AReaderThatLeavesEndsNothing) {
  StopReading();
  const int64_t before = DroppedLogLines();
  {
    const LogThread thread;
    for (int i = 0; i < 10; ++i) LOG_INFO("to nobody");
  }
  EXPECT_EQ(DroppedLogLines() - before, 10);
  LOG_INFO("nor without a thread");
}

}  // namespace
}  // namespace fathom
