#include "server/json_syntax.h"

#include <boost/json/basic_parser_impl.hpp>
#include <cstdint>

#include "server/json_body.h"

namespace fathom {
namespace {

namespace json = boost::json;
using boost::system::error_code;

// Takes everything, and remembers whether the outermost value is an object.
struct ShapeHandler {
  using Text = json::string_view;
  // Boost's names, to the end. NOLINTBEGIN
  static constexpr size_t max_object_size = SIZE_MAX, max_array_size = SIZE_MAX;
  static constexpr size_t max_key_size = SIZE_MAX, max_string_size = SIZE_MAX;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    is_object |= depth++ == 0;
    return true;
  }
  bool on_object_end(size_t, error_code&) { return --depth >= 0; }
  bool on_array_begin(error_code&) { return ++depth > 0; }
  bool on_array_end(size_t, error_code&) { return --depth >= 0; }
  bool on_key_part(Text, size_t, error_code&) { return true; }
  bool on_key(Text, size_t, error_code&) { return true; }
  bool on_string_part(Text, size_t, error_code&) { return true; }
  bool on_string(Text, size_t, error_code&) { return true; }
  bool on_number_part(Text, error_code&) { return true; }
  bool on_int64(int64_t, Text, error_code&) { return true; }
  bool on_uint64(uint64_t, Text, error_code&) { return true; }
  bool on_double(double, Text, error_code&) { return true; }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(Text, error_code&) { return true; }
  bool on_comment(Text, error_code&) { return true; }
  // NOLINTEND

  bool is_object = false;
  int depth = 0;
};

}  // namespace

bool IsJsonObject(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::basic_parser<ShapeHandler> parser(options);
  error_code error;
  const size_t read = parser.write_some(false, text.data(), text.size(), error);
  return !error && read == text.size() && parser.done() && parser.handler().is_object;
}

}  // namespace fathom
