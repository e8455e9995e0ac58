// The header of a safetensors file: which tensors lie where.
//
// The format (https://github.com/huggingface/safetensors): a little-endian u64, the header's
// length; a JSON object of name -> {dtype, shape, data_offsets}, the offsets counted from the
// header's end; then the data, which the tensors fill without overlap or hole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/problems.h"
#include "tensor/dtype.h"

namespace fathom {

struct StoredTensor {
  std::string name;
  std::string dtype_name;      // as in the file: "BF16", "F8_E4M3", ...
  std::optional<DType> dtype;  // absent for types that no model here has, as "F64" or "BOOL"
  std::vector<int64_t> shape;  // at most 8 dimensions
  uint64_t offset = 0;         // from the file's beginning, in bytes
  uint64_t bytes = 0;
  int32_t file = 0;        // index of the file, for the caller
  bool in_schema = false;  // for the caller
};

// "BF16 [4, 256]".
std::string Describe(const StoredTensor& tensor);

// The tensors of the file `file`, mapped at `bytes`. What is wrong with single tensors (they are
// returned all the same) goes to `problems`, each by name and file. An error means that the header
// itself cannot be read.
Result<std::vector<StoredTensor>> ReadSafetensorsHeader(std::span<const std::byte> bytes,
                                                        std::string_view file, Problems& problems);

}  // namespace fathom
