#include "server/json_fields.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fathom {
namespace {

namespace json = boost::json;

// The texts of `list` in an object, and what is said of them.
struct Texts {
  explicit Texts(const char* text) {
    const json::value object = json::parse(text);
    std::optional<ApiError> error;
    RequestFields fields(object.get_object(), &error, "outer");
    fields.EachObject("list", [&](RequestFields& entry) {
      ++asked;
      read.push_back(entry.RequiredString("text"));
    });
    if (error) said = error->message;
  }

  int asked = 0;
  std::vector<std::string> read;
  std::string said;
};

TEST(RequestFields, ReadEachObject) {
  const Texts texts(R"({"list": [{"text": "a"}, {"text": ""}]})");
  EXPECT_EQ(texts.read, (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(texts.said, "");
  EXPECT_EQ(Texts(R"({"list": null})").said, "");
  EXPECT_EQ(Texts(R"({"list": {}})").said, "outer.list must be a list, not an object");
}

TEST(RequestFields, EndAtTheFirstObjectThatIsAmiss) {
  const Texts missing(R"({"list": [{"text": "a"}, {"text": null}, {"text": 1}]})");
  EXPECT_EQ(missing.asked, 2);
  EXPECT_EQ(missing.said, "outer.list[1].text is required");
  const Texts wrong(R"({"list": [{"text": 1}, {}]})");
  EXPECT_EQ(wrong.asked, 1);
  EXPECT_EQ(wrong.said, "outer.list[0].text must be a string, not 1");
  const Texts none(R"({"list": [{"text": "a"}, "b"]})");
  EXPECT_EQ(none.asked, 1);
  EXPECT_EQ(none.said, "outer.list[1] must be an object, not \"b\"");
}

}  // namespace
}  // namespace fathom
