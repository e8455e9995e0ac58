// fathom bench: measures the engine, and servers.
#include "bench.h"

#include <fmt/chrono.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "commands.h"
#include "cpu/peak.h"

namespace fathom {
namespace {

// As a shell takes it for one word.
std::string Quoted(const std::string& word) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// The command line as it was typed, but for the program's folder and secrets.
std::string CommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command, word;
  bool is_secret = false;
  while (std::getline(file, word, '\0')) {
    if (is_secret) word = "KEY";
    if (word.starts_with("--api-key=")) word = "--api-key=KEY";
    is_secret = word == "--api-key";
    command += command.empty() ? "fathom" : " " + Quoted(word);
  }
  return command;
}

}  // namespace

boost::json::object RunRecord() {
  return {{"command", CommandLine()},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
          {"version", FATHOM_VERSION},
          {"cpu", CpuModelName()}};
}

double Median(std::span<const double> values) {
  CHECK(!values.empty());
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

void AddBench(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "bench", "Measure: offline, the engine against the limits of this machine; serve, a server.");
  command->require_subcommand(1);
  AddBenchOffline(*command, exit_code);
  AddBenchServe(*command, exit_code);
}

}  // namespace fathom
