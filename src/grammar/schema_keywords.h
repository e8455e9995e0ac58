// What single keywords of a JSON schema must say. Each answers kInvalidArgument, naming the place,
// `at`, and how to mend it.
#pragma once

#include <boost/json.hpp>
#include <string>

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
// their values, or by those of a property that all of them require.
Status CheckOneOf(const boost::json::array& branches, const std::string& at);

}  // namespace fathom
