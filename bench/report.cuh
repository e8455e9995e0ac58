// What the mains of GPU benchmarks share: cases by name, results a line each, and the JSON files
// that keep them.
#pragma once

#include <chrono>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/gpu_bench.cuh"

namespace fathom::bench {

struct DeviceInfo {
  DeviceInfo() {
    BENCH_CHECK(cudaGetDeviceProperties(&properties, 0));
    BENCH_CHECK(cudaDriverGetVersion(&driver));
  }
  cudaDeviceProp properties;
  int driver = 0;
};

inline void WriteFile(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr || std::fputs(text.c_str(), file) < 0 || std::fclose(file) != 0) {
    std::fprintf(stderr, "%s cannot be written\n", path.c_str());
    std::exit(1);
  }
}

inline std::string Format(const char* format, auto... args) {
  char text[512];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

// A product of M x N x K.
inline std::string ProductName(const char* kind, int64_t m, int64_t n, int64_t k,
                               const char* tile) {
  return Format("%s M %lld N %lld K %lld %s", kind, static_cast<long long>(m),
                static_cast<long long>(n), static_cast<long long>(k), tile);
}

using Values = std::vector<std::pair<const char*, double>>;

// Results: a line each, and the JSON file that keeps them.
class Report {
 public:
  void Add(const std::string& name, const Values& values) {
    std::string entry = "{\"name\": \"" + name + "\"";
    std::printf("%-46s", name.c_str());
    for (const auto& [key, value] : values) {
      entry += Format(", \"%s\": %.5g", key, value);
      std::printf("  %s %.4g", key, value);
    }
    std::printf("\n");
    std::fflush(stdout);
    entries_.push_back(entry + "}");
  }
  void Write(const char* path, const char* bench) const {
    const DeviceInfo device;
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
    std::string text = Format(
        "{\"bench\": \"%s\", \"device\": \"%s\", \"cuda_driver\": %d, \"date\": \"%s\",\n"
        " \"results\": [\n",
        bench, device.properties.name, device.driver, date);
    for (size_t i = 0; i < entries_.size(); ++i) {
      text += "  " + entries_[i] + (i + 1 < entries_.size() ? ",\n" : "\n");
    }
    WriteFile(path, text + " ]}\n");
  }

 private:
  std::vector<std::string> entries_;
};

// The JSON object of benchmarks that print tables of their own: a member each, and the device.
class JsonObject {
 public:
  void Add(const char* format, auto... args) { members_ += ",\n  " + Format(format, args...); }
  void Write(const std::string& path) const {
    const DeviceInfo device;
    WriteFile(path, Format("{\n  \"device\": \"%s\", \"driver_cuda\": %d", device.properties.name,
                           device.driver) +
                        members_ + "\n}\n");
  }

 private:
  std::string members_;
};

// Takes `--json FILE` from a main's arguments; the others stay. Empty: it is not there.
inline std::string TakeJsonFile(std::vector<std::string>& args) {
  for (size_t i = 0; i + 1 < args.size(); ++i) {
    if (args[i] != "--json") continue;
    const std::string file = args[i + 1];
    args.erase(args.begin() + i, args.begin() + i + 2);
    return file;
  }
  return "";
}

using Case = std::pair<const char*, void (*)()>;

// Runs the case of this name; says so and returns false if there is none.
inline bool RunCase(const char* name, const std::vector<Case>& cases) {
  for (const auto& [its_name, run] : cases) {
    if (std::strcmp(name, its_name) == 0) return run(), true;
  }
  std::fprintf(stderr, "there is no case %s\n", name);
  return false;
}

// The main of a bench whose arguments are a file for its report and cases. The file is written
// after each case: what comes later may be cut off.
inline int RunCases(const char* bench, int argc, char** argv, const std::vector<Case>& cases,
                    Report& report) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s_bench FILE.json CASE...\n", bench);
    return 2;
  }
  for (int i = 2; i < argc; ++i) {
    if (!RunCase(argv[i], cases)) return 2;
    report.Write(argv[1], bench);
  }
  return 0;
}

// Inputs of so many bytes that, each taking its turn, none is still in the L2.
inline int SetsPastL2(double bytes) {
  return static_cast<int>(std::clamp(200e6 / bytes + 1, 2.0, 48.0));
}

// Each measurement begins on a chip that has rested: long products run into the power limit, and
// what comes later would look slower.
template <class F>
double MedianOfRested(int rest_ms, int sets, const F& launch) {
  std::this_thread::sleep_for(std::chrono::milliseconds(rest_ms));
  return MedianMicroseconds(sets, 7, launch);
}

}  // namespace fathom::bench
