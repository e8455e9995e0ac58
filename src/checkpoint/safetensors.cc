#include "checkpoint/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "checkpoint/json.h"

namespace fathom {
namespace {

constexpr uint64_t kMaxHeaderBytes = 32 << 20;  // V3's 91,991 tensors in one file: 11 MB
constexpr size_t kMaxDimensions = 8;

// Bytes of an element; 0 for a type that this reader does not know.
struct FileType {
  std::string_view name;
  uint64_t bytes;
  std::optional<DType> dtype;
};
constexpr std::array<FileType, 16> kFileTypes = {{
    {"F32", 4, DType::kF32},
    {"F16", 2, DType::kF16},
    {"BF16", 2, DType::kBF16},
    {"F8_E4M3", 1, DType::kF8E4M3},
    {"I32", 4, DType::kI32},
    {"I64", 8, DType::kI64},
    {"U8", 1, DType::kU8},
    {"F64", 8, {}},
    {"U64", 8, {}},
    {"U32", 4, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
}};

const FileType* FindType(std::string_view name) {
  const auto* type = std::find_if(kFileTypes.begin(), kFileTypes.end(),
                                  [&](const FileType& t) { return t.name == name; });
  return type == kFileTypes.end() ? nullptr : type;
}

// The header's text, without trust in its length.
Result<std::string_view> HeaderText(std::span<const std::byte> bytes) {
  uint64_t size = 0;
  if (bytes.size() < sizeof(size)) return DataLoss("cut off: {} bytes", bytes.size());
  std::memcpy(&size, bytes.data(), sizeof(size));
  if (std::memcmp(bytes.data(), "version ", sizeof(size)) == 0) {
    return DataLoss("a Git LFS pointer, not the file itself: run `git lfs pull` in the folder");
  }
  if (size > bytes.size() - sizeof(size)) {
    return DataLoss(
        "not a safetensors file, or cut off: its header would have {} bytes, the file "
        "has {}",
        size, bytes.size());
  }
  if (size > kMaxHeaderBytes) {
    return ResourceExhausted("its header has {} bytes; at most {} are read", size, kMaxHeaderBytes);
  }
  return std::string_view(reinterpret_cast<const char*>(bytes.data()) + sizeof(size), size);
}

// A non-negative integer below 2^62, which no product of an offset and the file's size exceeds.
std::optional<uint64_t> ToSize(const boost::json::value& value) {
  constexpr int64_t kEnd = int64_t{1} << 62;
  const int64_t* number = value.if_int64();
  if (number == nullptr || *number < 0 || *number >= kEnd) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

// Reads `entry` into `tensor`, whose offset stays relative to the data. False: not of this form.
bool ReadEntry(const boost::json::value& entry, StoredTensor& tensor) {
  const boost::json::object* object = entry.if_object();
  if (object == nullptr) return false;
  const boost::json::value *dtype = object->if_contains("dtype"),
                           *shape = object->if_contains("shape"),
                           *offsets = object->if_contains("data_offsets");
  if (dtype == nullptr || !dtype->is_string() || shape == nullptr || !shape->is_array() ||
      offsets == nullptr || !offsets->is_array() || offsets->get_array().size() != 2 ||
      shape->get_array().size() > kMaxDimensions) {
    return false;
  }
  for (const boost::json::value& dim : shape->get_array()) {
    const std::optional<uint64_t> size = ToSize(dim);
    if (!size.has_value()) return false;
    tensor.shape.push_back(static_cast<int64_t>(*size));
  }
  const std::optional<uint64_t> begin = ToSize(offsets->get_array()[0]);
  const std::optional<uint64_t> end = ToSize(offsets->get_array()[1]);
  if (!begin.has_value() || !end.has_value() || *end < *begin) return false;
  tensor.offset = *begin;
  tensor.bytes = *end - *begin;
  tensor.dtype_name = Printable({dtype->get_string().data(), dtype->get_string().size()});
  return true;
}

// Whether the tensor's type and shape agree with its bytes.
void CheckEntry(StoredTensor& tensor, std::string_view file, Problems& problems) {
  const std::string name = Printable(tensor.name);
  const FileType* type = FindType(tensor.dtype_name);
  if (type == nullptr) return;
  tensor.dtype = type->dtype;
  uint64_t bytes = type->bytes;
  bool overflow = false;
  for (const int64_t dim : tensor.shape) {
    overflow = overflow || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes);
  }
  if (overflow || bytes != tensor.bytes) {
    problems.Add("{}: {} needs {} bytes, but {} gives it {}", name, Describe(tensor),
                 overflow ? "too many" : std::to_string(bytes), file, tensor.bytes);
  }
}

// "1 tensor (a)", "350 tensors (a, b, ..., and 330 more)".
std::string Listed(std::span<const StoredTensor* const> tensors) {
  constexpr size_t kNamed = 20;
  std::vector<std::string> names;
  for (const StoredTensor* tensor : tensors.first(std::min(kNamed, tensors.size()))) {
    names.push_back(Printable(tensor->name));
  }
  if (tensors.size() > kNamed) names.push_back(fmt::format("and {} more", tensors.size() - kNamed));
  return fmt::format("{} tensor{} ({})", tensors.size(), tensors.size() == 1 ? "" : "s",
                     fmt::join(names, ", "));
}

// A file that was cut off is one problem, however many tensors it lacks.
void CheckEnd(const std::vector<StoredTensor>& tensors, uint64_t data_bytes, std::string_view file,
              Problems& problems) {
  std::vector<const StoredTensor*> beyond;
  uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    end = std::max(end, tensor.offset + tensor.bytes);
    if (tensor.offset + tensor.bytes > data_bytes) beyond.push_back(&tensor);
  }
  if (beyond.empty()) return;
  problems.Add(
      "{}: cut off: it has {} bytes of data and its header describes {}; beyond its end: {}: "
      "download it again",
      file, data_bytes, end, Listed(beyond));
}

// Overlaps and holes. `tensors` carry offsets relative to the data. One wrong offset may lay a
// tensor over hundreds: that is one problem.
void CheckLayout(const std::vector<StoredTensor>& tensors, uint64_t data_bytes,
                 std::string_view file, Problems& problems) {
  std::vector<const StoredTensor*> order(tensors.size());
  std::transform(tensors.begin(), tensors.end(), order.begin(),
                 [](const StoredTensor& tensor) { return &tensor; });
  std::sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  uint64_t at = 0;
  const StoredTensor* last = nullptr;  // the one that ends at `at`
  std::vector<const StoredTensor*> overlapped;
  const auto report_overlaps = [&] {
    if (overlapped.empty()) return;
    problems.Add("{}: overlaps {} in {}", Printable(last->name), Listed(overlapped), file);
    overlapped.clear();
  };
  for (const StoredTensor* tensor : order) {
    if (tensor->offset < at) {
      overlapped.push_back(tensor);
    } else if (tensor->offset > at) {
      problems.Add("{}: bytes [{}, {}) before {} belong to no tensor, or a name is there twice",
                   file, at, tensor->offset, Printable(tensor->name));
    }
    if (tensor->offset + tensor->bytes >= at) {
      report_overlaps();
      at = tensor->offset + tensor->bytes;
      last = tensor;
    }
  }
  report_overlaps();
  if (at < data_bytes) {
    problems.Add("{}: its last {} bytes belong to no tensor, or a name is there twice", file,
                 data_bytes - at);
  }
}

}  // namespace

std::string Describe(const StoredTensor& tensor) {
  return fmt::format("{} [{}]", tensor.dtype_name, fmt::join(tensor.shape, ", "));
}

Result<std::vector<StoredTensor>> ReadSafetensorsHeader(std::span<const std::byte> bytes,
                                                        std::string_view file, Problems& problems) {
  const auto fail = [&](const Status& status) { return status.WithContext(file); };
  const Result<std::string_view> text = HeaderText(bytes);
  if (!text.ok()) return fail(text.status());
  boost::json::monotonic_resource memory;
  const Result<boost::json::object> header = ParseJsonObject("its header", *text, &memory);
  if (!header.ok()) return fail(header.status());

  const uint64_t data_begin = sizeof(uint64_t) + text->size();
  const uint64_t data_bytes = bytes.size() - data_begin;
  std::vector<StoredTensor> tensors;
  tensors.reserve(header->size());
  for (const auto& [key, entry] : *header) {
    if (key == "__metadata__") continue;
    StoredTensor tensor;
    tensor.name = std::string_view(key.data(), key.size());
    if (!ReadEntry(entry, tensor)) {
      problems.Add("{}: malformed entry in the header of {}", Printable(tensor.name), file);
      continue;
    }
    CheckEntry(tensor, file, problems);
    tensors.push_back(std::move(tensor));
  }
  CheckEnd(tensors, data_bytes, file, problems);
  CheckLayout(tensors, data_bytes, file, problems);
  for (StoredTensor& tensor : tensors) tensor.offset += data_begin;
  return tensors;
}

}  // namespace fathom
