// A file of weights: its header.
#include <span>

#include "checkpoint/safetensors.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fathom::Problems problems;
  const auto tensors =
      fathom::ReadSafetensorsHeader(std::as_bytes(std::span(data, size)), "a file", problems);
  if (!tensors.ok()) {
    CHECK(!tensors.status().message().empty());
    return 0;
  }
  if (!problems.empty()) return 0;
  for (const fathom::StoredTensor& tensor : *tensors) {
    CHECK(tensor.offset <= size && tensor.bytes <= size - tensor.offset, "{} is not in the file",
          tensor.name);
  }
  return 0;
}
