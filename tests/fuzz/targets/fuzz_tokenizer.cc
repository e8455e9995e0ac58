// tokenizer.json: refused with a sentence, or a tokeniser whose tokens give the text back.
#include <cstdlib>
#include <fstream>
#include <string>

#include "fuzz.h"
#include "tokenizer/tokenizer.h"

namespace {

const std::string& Folder() {
  static const std::string& folder = *new std::string([] {
    char name[] = "/dev/shm/fathom-fuzz-XXXXXX";
    CHECK(mkdtemp(name) != nullptr);
    return std::string(name);
  }());
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(Folder() + "/tokenizer.json", std::ios::binary | std::ios::trunc)
      << fathom::TextOf(data, size);
  const auto tokenizer = fathom::Tokenizer::Load(Folder());
  if (!tokenizer.ok()) {
    CHECK(!tokenizer.status().message().empty());
    return 0;
  }
  fathom::FuzzLimits work;
  for (const char* text : {"", "Hello, world  12345\n\n", "é中\xF0\x9F\x98\x80 a\tb", "<s></s>"}) {
    const auto ids = (*tokenizer)->Encode(text, /*add_special_tokens=*/true, work.limits());
    if (!ids.ok()) continue;
    for (const fathom::TokenId id : *ids) {
      CHECK(Raw(id) >= 0 && Raw(id) < (*tokenizer)->vocab_size(), "token {}", Raw(id));
    }
    (*tokenizer)->Decode(*ids, /*skip_special_tokens=*/false);
  }
  return 0;
}
