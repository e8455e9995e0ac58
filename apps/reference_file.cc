#include "reference_file.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <numeric>

#include "base/mmap.h"
#include "checkpoint/safetensors.h"

namespace fathom {
namespace {

constexpr int kMaxPrompts = 1024;

class Reader {
 public:
  static Result<Reader> Open(const std::string& path) {
    MappedFile file = TRY(MappedFile::Open(path));
    Problems problems;
    std::vector<StoredTensor> tensors = TRY(ReadSafetensorsHeader(file.bytes(), path, problems));
    if (!problems.empty()) return problems.ToStatus(path);
    Reader reader(std::move(file));
    for (StoredTensor& tensor : tensors) reader.tensors_[tensor.name] = std::move(tensor);
    return reader;
  }

  bool Has(const std::string& name) const { return tensors_.contains(name); }

  // The tensor's numbers; `width` is what its last dimension must be (negative: anything), and its
  // other dimension must be `outer` (negative: anything).
  template <class T>
  Result<std::vector<T>> Read(const std::string& name, DType dtype, int64_t outer,
                              int64_t width = -1) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return InvalidArgument("{} has no tensor {}", file_.path(), name);
    const StoredTensor& tensor = found->second;
    const bool fits = tensor.dtype == dtype && tensor.shape.size() == (width >= 0 ? 2u : 1u) &&
                      (outer < 0 || tensor.shape[0] == outer) &&
                      (width < 0 || tensor.shape[1] == width);
    if (!fits) {
      return InvalidArgument("{}: {} is {}, which does not fit the model or the other tensors",
                             file_.path(), name, Describe(tensor));
    }
    std::vector<T> values(tensor.bytes / sizeof(T));
    std::memcpy(values.data(), file_.bytes().data() + tensor.offset, values.size() * sizeof(T));
    return values;
  }

  // Token ids, each checked against the vocabulary.
  Result<std::vector<TokenId>> Tokens(const std::string& name, int64_t count, int64_t vocab) const {
    std::vector<TokenId> tokens;
    for (int32_t id : TRY(Read<int32_t>(name, DType::kI32, count))) {
      if (id < 0 || id >= vocab) {
        return InvalidArgument("{}: {} has token {}; the model has {}", file_.path(), name, id,
                               vocab);
      }
      tokens.push_back(TokenId{id});
    }
    return tokens;
  }

  int64_t Columns(const std::string& name) const {
    const StoredTensor& tensor = tensors_.at(name);
    return tensor.shape.size() == 2 ? tensor.shape[1] : -1;
  }

 private:
  explicit Reader(MappedFile file) : file_(std::move(file)) {}
  MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
};

Result<ReferencePrompt> ReadPrompt(const Reader& reader, const std::string& prefix, int64_t vocab) {
  ReferencePrompt p;
  p.prompt = TRY(reader.Tokens(prefix + "prompt", -1, vocab));
  const auto length = static_cast<int64_t>(p.prompt.size());
  if (length == 0) return InvalidArgument("{}prompt is empty", prefix);
  if (reader.Has(prefix + "greedy")) {
    p.greedy = TRY(reader.Tokens(prefix + "greedy", -1, vocab));
  }
  if (reader.Has(prefix + "last_logits")) {
    const int64_t last = std::min<int64_t>(4, length);
    p.positions.resize(static_cast<size_t>(last));
    std::iota(p.positions.begin(), p.positions.end(), static_cast<int32_t>(length - last));
    p.logits = TRY(reader.Read<float>(prefix + "last_logits", DType::kF32, last, vocab));
  } else if (reader.Has(prefix + "positions")) {
    p.positions = TRY(reader.Read<int32_t>(prefix + "positions", DType::kI32, -1));
    for (size_t i = 0; i < p.positions.size(); ++i) {
      if (p.positions[i] < (i == 0 ? 0 : p.positions[i - 1] + 1) || p.positions[i] >= length) {
        return InvalidArgument("{}positions do not rise within the prompt", prefix);
      }
    }
    p.logits = TRY(reader.Read<float>(prefix + "logits", DType::kF32,
                                      static_cast<int64_t>(p.positions.size()), vocab));
  } else {
    p.positions.resize(p.prompt.size());
    std::iota(p.positions.begin(), p.positions.end(), 0);
    p.logits = TRY(reader.Read<float>(prefix + "logits", DType::kF32, length, vocab));
  }
  if (reader.Has(prefix + "top_ids")) {
    p.top_width = reader.Columns(prefix + "top_ids");
    p.top_ids = TRY(reader.Read<int32_t>(prefix + "top_ids", DType::kI32, length, p.top_width));
    for (int32_t id : p.top_ids) {
      if (id < 0 || id >= vocab) return InvalidArgument("{}top_ids has token {}", prefix, id);
    }
    p.top_logprobs =
        TRY(reader.Read<float>(prefix + "top_logprobs", DType::kF32, length, p.top_width));
  }
  if (reader.Has(prefix + "draft")) {
    const auto drafts = length + static_cast<int64_t>(p.greedy.size()) - 1;
    p.draft = TRY(reader.Tokens(prefix + "draft", drafts, vocab));
  }
  return p;
}

}  // namespace

Result<std::vector<ReferencePrompt>> ReadReference(const std::string& path, int64_t vocab) {
  const Reader reader = TRY(Reader::Open(path));
  std::vector<ReferencePrompt> prompts;
  for (int i = 0; i < kMaxPrompts && reader.Has(fmt::format("{}.prompt", i)); ++i) {
    prompts.push_back(TRY(ReadPrompt(reader, fmt::format("{}.", i), vocab)));
  }
  if (prompts.empty()) {
    return InvalidArgument("{} has no tensor 0.prompt: it is not a reference file", path);
  }
  return prompts;
}

}  // namespace fathom
