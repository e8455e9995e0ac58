#include "tests/gpu/cuda_calls.h"

#include <cupti.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace fathom {
namespace {

std::atomic<bool> counting = false;
std::mutex mutex;
std::map<std::string, int64_t> calls;  // guarded by mutex

void CUPTIAPI Count(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void* data) {
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  if (call->callbackSite != CUPTI_API_ENTER || !counting) return;
  const std::lock_guard lock(mutex);
  ++calls[call->functionName];
}

struct Cupti {
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableDomain) enable_domain = nullptr;
  CUpti_SubscriberHandle subscriber = nullptr;
};
Cupti cupti;

void* OpenLibrary() {
  const char* named = std::getenv("FATHOM_CUPTI");
  for (const char* path : {named, "libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
                           "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"}) {
    if (path == nullptr) continue;
    if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class F>
bool Find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

std::string Subscribe() {
  void* const library = OpenLibrary();
  if (library == nullptr) {
    return "libcupti.so.13 was not found: install CUDA's CUPTI, or name the file in FATHOM_CUPTI";
  }
  if (!Find(library, "cuptiSubscribe", cupti.subscribe) ||
      !Find(library, "cuptiUnsubscribe", cupti.unsubscribe) ||
      !Find(library, "cuptiEnableDomain", cupti.enable_domain)) {
    return "libcupti.so.13 lacks functions of CUDA 13's";
  }
  if (const CUptiResult result = cupti.subscribe(&cupti.subscriber, Count, nullptr);
      result != CUPTI_SUCCESS) {
    return "cuptiSubscribe: error " + std::to_string(result);
  }
  for (const auto domain : {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_DRIVER_API}) {
    if (const CUptiResult result = cupti.enable_domain(1, cupti.subscriber, domain);
        result != CUPTI_SUCCESS) {
      return "cuptiEnableDomain: error " + std::to_string(result);
    }
  }
  return "";
}

}  // namespace

CudaCalls::CudaCalls() : missing_(Subscribe()) {}

CudaCalls::~CudaCalls() {
  if (cupti.subscriber != nullptr) (void)cupti.unsubscribe(cupti.subscriber);
  cupti.subscriber = nullptr;
}

void CudaCalls::Start() {
  {
    const std::lock_guard lock(mutex);
    calls.clear();
  }
  counting = true;
}

void CudaCalls::Stop() {
  counting = false;
}

std::map<std::string, int64_t> CudaCalls::counts() const {
  const std::lock_guard lock(mutex);
  return calls;
}

int64_t CudaCalls::Sum(const std::function<bool(std::string_view)>& wanted) const {
  int64_t sum = 0;
  for (const auto& [name, count] : counts()) sum += wanted(name) ? count : 0;
  return sum;
}

}  // namespace fathom
