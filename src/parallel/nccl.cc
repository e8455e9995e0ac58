#include "parallel/nccl.h"

#include <dlfcn.h>

namespace fathom {
namespace {

constexpr int kLeastVersion = 22800;

template <class Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Status NotThere(const std::string& why) {
  return Unavailable(
      "GPUs of several hosts need NCCL 2.28 or later ({}): install NVIDIA's package libnccl2, or "
      "PyPI's nvidia-nccl-cu13 and name the folder of its libnccl.so.2 in LD_LIBRARY_PATH",
      why);
}

Result<NcclFunctions> Load() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NotThere(dlerror());
  NcclFunctions f{};
  const bool found = Find(library, "ncclGetVersion", f.GetVersion) &&
                     Find(library, "ncclGetUniqueId", f.GetUniqueId) &&
                     Find(library, "ncclCommInitRank", f.CommInitRank) &&
                     Find(library, "ncclGroupStart", f.GroupStart) &&
                     Find(library, "ncclGroupEnd", f.GroupEnd) &&
                     Find(library, "ncclSend", f.Send) && Find(library, "ncclRecv", f.Recv) &&
                     Find(library, "ncclGetLastError", f.GetLastError);
  int version = 0;
  if (!found || f.GetVersion(&version) != kNcclSuccess) {
    return NotThere("libnccl.so.2 lacks what version 2.28 has");
  }
  if (version < kLeastVersion) {
    return NotThere(fmt::format("libnccl.so.2 is {}.{}.{}", version / 10000, version / 100 % 100,
                                version % 100));
  }
  return f;
}

}  // namespace

Result<const NcclFunctions*> Nccl() {
  static const Result<NcclFunctions> functions = Load();
  if (!functions.ok()) return functions.status();
  return &*functions;
}

Status NcclStatus(const NcclFunctions& nccl, NcclResult result) {
  if (result == kNcclSuccess) return {};
  return Unavailable("NCCL: {}", nccl.GetLastError(nullptr));
}

}  // namespace fathom
