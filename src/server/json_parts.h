// The text of a JSON object that is made in parts, so that JSON of one part alone takes memory.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <vector>

namespace fathom {

class JsonParts {
 public:
  // Objects of the same keys. Their arrays are joined; of other values the first part's stand.
  void Add(const boost::json::object& part);
  std::string Text() const;

 private:
  struct Member {
    std::string key;  // as JSON
    bool array;
    std::string text;  // without an array's brackets
  };
  std::vector<Member> members_;
};

}  // namespace fathom
