// Values by name, in the order in which the names were first set.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::jinja {

// Where a name stands in a list. A tree, which no choice of names makes slow, once there are more
// than a few names; until then whoever has the list looks through it.
class NameIndex {
 public:
  static constexpr size_t kFew = 16;

  // REQUIRES: more than kFew names were added.
  std::optional<size_t> Find(std::string_view name) const {
    const auto found = places_->find(name);
    return found == places_->end() ? std::nullopt : std::optional(found->second);
  }
  void Add(std::string name, size_t place) {
    if (places_ == nullptr) places_ = std::make_unique<Places>();
    places_->emplace(std::move(name), place);
  }

 private:
  using Places = std::map<std::string, size_t, std::less<>>;
  std::unique_ptr<Places> places_;  // of the few lists that have it
};

template <class Value>
class NamedValues {
 public:
  const Value* Find(std::string_view name) const {
    const std::optional<size_t> place = Place(name);
    return place ? &values_[*place].second : nullptr;
  }
  void Set(std::string_view name, Value value) {
    if (const std::optional<size_t> place = Place(name)) {
      values_[*place].second = std::move(value);
      return;
    }
    values_.emplace_back(name, std::move(value));
    if (values_.size() == NameIndex::kFew + 1) {
      for (size_t i = 0; i < NameIndex::kFew; ++i) index_.Add(values_[i].first, i);
    }
    if (values_.size() > NameIndex::kFew) index_.Add(std::string(name), values_.size() - 1);
  }
  void Clear() {
    values_.clear();
    index_ = {};
  }

 private:
  std::optional<size_t> Place(std::string_view name) const {
    if (values_.size() > NameIndex::kFew) return index_.Find(name);
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].first == name) return i;
    }
    return std::nullopt;
  }

  std::vector<std::pair<std::string, Value>> values_;
  NameIndex index_;
};

}  // namespace fathom::jinja
