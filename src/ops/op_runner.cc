#include "ops/op_runner.h"

#include <cxxabi.h>

#include <cctype>
#include <cstdlib>

namespace fathom {

std::string OpName(const std::type_info& args) {
  int status = 0;
  char* const type = abi::__cxa_demangle(args.name(), nullptr, nullptr, &status);
  std::string_view camel = type == nullptr ? args.name() : type;
  camel.remove_prefix(camel.rfind(':') + 1);  // npos + 1 is 0
  if (camel.ends_with("Args")) camel.remove_suffix(4);
  std::string name;
  for (const char c : camel) {
    if (std::isupper(static_cast<unsigned char>(c)) != 0 && !name.empty()) name += '_';
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  std::free(type);
  return name;
}

}  // namespace fathom
