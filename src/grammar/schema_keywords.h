// What single keywords of a JSON schema must say. Each answers kInvalidArgument, naming the place,
// `at`, and how to mend it.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom {

// `type`: names of types that there are.
Status CheckTypeNames(const boost::json::object& schema, const std::string& at);

// Whether `type` names `type`, alone or among others.
bool HasType(const boost::json::object& schema, std::string_view type);

// `minimum` to `multipleOf`: numbers, which leave some number of the type beside them.
Status CheckNumbers(const boost::json::object& schema, const std::string& at);

// `minLength` and `maxLength` beside what says of each character what it is.
Status CheckStrings(const boost::json::object& schema, const std::string& at);

// `prefixItems`, `minItems` and `maxItems`: schemas that leave some list. `strict`: items that
// nothing names are forbidden.
Status CheckItems(const boost::json::object& schema, bool strict, const std::string& at);

// `propertyNames`: a schema of strings.
Status CheckNames(const boost::json::value& names, const std::string& at);

// The branches of `oneOf`: what is valid under one is valid under no other, by their types, by
// their values, or by a property that one of them requires. `root`: what references are of.
// `*steps`: that the schema has left; a `oneOf` is refused where these do not suffice.
Status CheckOneOf(const boost::json::value& root, const boost::json::array& branches,
                  const std::string& at, int64_t* steps);

// `required` to `maxProperties`: some object meets them all. `strict`: properties that nothing
// names are forbidden.
Status CheckProperties(const boost::json::object& schema, bool strict, const std::string& at);

// The schema at a reference, # or #/..., without ~ and %; null if there is none.
const boost::json::value* SchemaAt(const boost::json::value& root, std::string_view uri);

}  // namespace fathom
