#include "tensor/out_of_memory.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace fathom {
namespace {
std::string& Plan() {
  static std::string plan;
  return plan;
}
}  // namespace

void SetMemoryPlan(std::string plan) {
  Plan() = std::move(plan);
}

void OutOfMemory(const std::string& refused) {
  fmt::print(
      stderr,
      "out of memory: {}{}{}. Lower --max-num-seqs, --max-model-len, "
      "--max-num-batched-tokens or --kv-cache-memory-bytes, take a smaller model, or on a CPU "
      "--quantization int8 or int4\n",
      refused, Plan().empty() ? "" : "; the plan was: ", Plan());
  std::fflush(stderr);
  std::_Exit(1);
}

}  // namespace fathom
