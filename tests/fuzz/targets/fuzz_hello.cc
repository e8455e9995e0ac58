// What hosts say when they meet, once they have proved the secret: refused, or read as it is
// written again.
#include "fuzz.h"
#include "hosts/hello.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fathom::TextOf(data, size));
  if (const auto hello = fathom::ParseHello(text, "a host"); hello.ok()) {
    const auto again = fathom::ParseHello(fathom::Text(*hello), "a host");
    CHECK(again.ok() && fathom::Text(*again) == fathom::Text(*hello));
  }
  if (const auto answer = fathom::ParseAnswer(text); answer.ok()) {
    const auto again = fathom::ParseAnswer(fathom::WelcomeText(*answer));
    CHECK(again.ok() && again->size() == answer->size());
  }
  return 0;
}
