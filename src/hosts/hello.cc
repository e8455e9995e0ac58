#include "hosts/hello.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

namespace fathom {
namespace {

namespace json = boost::json;

Result<json::object> ParseObject(const std::string& text, std::string_view whose) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error, {}, {.max_depth = 4});
  if (error || !value.is_object()) return DataLoss("{} says what is no JSON object", whose);
  return value.as_object();
}

constexpr int64_t kMostNumber = 1 << 20;  // of hosts, groups and ranks

// -1 if it is none.
int64_t Number(const json::value& value, int64_t most) {
  const int64_t* number = value.if_int64();
  return number == nullptr || *number < 0 || *number > most ? -1 : *number;
}

int64_t Number(const json::object& object, std::string_view key, int64_t most = kMostNumber) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? -1 : Number(*value, most);
}

}  // namespace

std::string Text(const Hello& hello) {
  json::object facts;
  for (const auto& [name, value] : hello.facts) facts[name] = value;
  return json::serialize(json::object{{"lane", hello.lane},
                                      {"index", hello.index},
                                      {"port", hello.port},
                                      {"facts", std::move(facts)},
                                      {"group", hello.group},
                                      {"from", hello.from},
                                      {"to", hello.to}});
}

Result<Hello> ParseHello(const std::string& text, std::string_view whose) {
  const json::object object = TRY(ParseObject(text, whose));
  const json::value* lane = object.if_contains("lane");
  const int64_t index = Number(object, "index"), port = Number(object, "port", UINT16_MAX),
                group = Number(object, "group"), from = Number(object, "from"),
                to = Number(object, "to");
  const json::value* facts = object.if_contains("facts");
  if (lane == nullptr || !lane->is_bool() || std::min({index, port, group, from, to}) < 0 ||
      facts == nullptr || !facts->is_object()) {
    return DataLoss("{} says what it came for in a form that this host does not know", whose);
  }
  Hello hello{.lane = lane->as_bool(),
              .index = static_cast<int>(index),
              .port = static_cast<uint16_t>(port),
              .group = static_cast<int>(group),
              .from = static_cast<int>(from),
              .to = static_cast<int>(to)};
  for (const auto& [name, value] : facts->as_object()) {
    if (value.is_string()) hello.facts[std::string(name)] = value.as_string();
  }
  return hello;
}

std::string WelcomeText(const HostAddresses& others) {
  json::array hosts;
  for (const auto& [host, address] : others) {
    hosts.push_back(json::array{host, address.host, address.port});
  }
  return json::serialize(json::object{{"error", ""}, {"hosts", std::move(hosts)}});
}

std::string RefusalText(std::string_view why) {
  return json::serialize(json::object{{"error", why}});
}

Result<HostAddresses> ParseAnswer(const std::string& text) {
  const json::object answer = TRY(ParseObject(text, "the first host"));
  const json::value *error = answer.if_contains("error"), *hosts = answer.if_contains("hosts");
  if (error == nullptr || !error->is_string()) return DataLoss("an answer without a verdict");
  if (!error->as_string().empty()) {
    return InvalidArgument("{}", std::string_view(error->as_string()));
  }
  if (hosts == nullptr || !hosts->is_array()) return DataLoss("the first host names no others");
  HostAddresses addresses;
  for (const json::value& entry : hosts->as_array()) {
    const json::array* of = entry.if_array();
    const bool known = of != nullptr && of->size() == 3 && (*of)[1].is_string();
    const int64_t host = known ? Number((*of)[0], kMostNumber) : -1;
    const int64_t port = known ? Number((*of)[2], UINT16_MAX) : -1;
    if (std::min(host, port) < 0) {
      return DataLoss("the first host names others in a form that this one does not know");
    }
    addresses[static_cast<int>(host)] = {std::string((*of)[1].as_string()),
                                         static_cast<uint16_t>(port)};
  }
  return addresses;
}

}  // namespace fathom
