// Other APIs' requests become chat requests: what they take of a chat's fields, and whose names
// stand in what is wrong with them.
#pragma once

#include <boost/json.hpp>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "server/json_fields.h"

namespace fathom {

// Copies to `*chat` all fields but the API's `own`, so that what a chat does with them is done, or
// refused by name. Refuses what an answer in blocks has no place for.
void TakeChatFields(RequestFields& fields, const boost::json::object& body,
                    std::initializer_list<std::string_view> own, boost::json::object* chat);

// How a chat's names, whole words, are called in another API; the first that fits counts.
using Words = std::span<const std::pair<std::string_view, std::string_view>>;

// `text` in these words; what it quotes stays.
std::string Reworded(std::string_view text, Words words);
ApiError Reworded(ApiError error, Words words);

}  // namespace fathom
