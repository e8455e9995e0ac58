#include "server/json_parts.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

namespace json = boost::json;

TEST(JsonPartsTest, ArraysAreJoined) {
  JsonParts parts;
  EXPECT_EQ(parts.Text(), "{}");
  parts.Add({{"a", json::array{}}, {"b \"", nullptr}, {"c", {1}}});
  EXPECT_EQ(parts.Text(), R"({"a":[],"b \"":null,"c":[1]})");
  parts.Add({{"a", {"x", {2, 3}}}, {"b \"", 7}, {"c", json::array{}}});
  parts.Add({{"a", json::array{}}, {"b \"", 7}, {"c", json::array{nullptr, {{"d", 4}}}}});
  EXPECT_EQ(parts.Text(), R"({"a":["x",[2,3]],"b \"":null,"c":[1,null,{"d":4}]})");
}

}  // namespace
}  // namespace fathom
