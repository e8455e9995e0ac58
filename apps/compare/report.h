// A comparison as one page, or as one JSON object.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "comparison.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

std::string ToPage(const Comparison& comparison, const CompareOptions& options,
                   const Tokenizer& tokenizer);
boost::json::object ToJson(const Comparison& comparison, const CompareOptions& options,
                           const Tokenizer& tokenizer);

}  // namespace fathom
