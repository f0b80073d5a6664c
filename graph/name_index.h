#pragma once
// Which values have a name, found in constant time.

#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>

namespace arbalest {

class NameIndex {
 public:
  void add(std::string_view name, int32_t id) { ids_.emplace(std::hash<std::string_view>{}(name), id); }
  void clear() { ids_.clear(); }
  // The lowest id of this name that `has` it still, as an id stays under a name that its value has given up; −1 if
  // there is none.
  template <typename Has>
  int32_t find(std::string_view name, Has&& has) const {
    int32_t lowest = -1;
    const auto [first, last] = ids_.equal_range(std::hash<std::string_view>{}(name));
    for (auto it = first; it != last; ++it) {
      if ((lowest < 0 || it->second < lowest) && has(it->second)) lowest = it->second;
    }
    return lowest;
  }

 private:
  std::unordered_multimap<uint64_t, int32_t> ids_;  // by the name's hash
};

}  // namespace arbalest
