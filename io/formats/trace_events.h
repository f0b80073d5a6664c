// SPDX-License-Identifier: Apache-2.0
#pragma once
// The events of a trace's file, one by one as it is read: memory grows neither with the text nor with the number of
// events.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace arbalest {

// The members of an object whose values are numbers and texts for the most part. What was there before is written over
// rather than freed: a tree for each of ten million events would take most of the time that reading takes.
class EventFields {
 public:
  const nlohmann::json* find(std::string_view key) const;  // nullptr: there is none; of several the last
  const nlohmann::json& at(std::string_view key) const;    // throws GraphError if there is none
  nlohmann::json as_object() const;

  void clear() { count_ = 0; }
  nlohmann::json& add(std::string_view key);  // null until it is assigned to

 private:
  std::vector<std::pair<std::string, nlohmann::json>> fields_;
  size_t count_ = 0;  // of fields_ that are in use
};

struct TraceEvent {
  EventFields fields;  // all but `args`
  EventFields args;    // empty if it has none
};

// Calls `take` for each object of the list 'traceEvents' of a file, gzipped or plain. Throws RunError if the file
// cannot be read, and GraphError that names it if it is no trace or `take` throws one. If it is not JSON, the error has
// line and column.
void read_events(const std::string& path, const std::function<void(const TraceEvent&)>& take);

}  // namespace arbalest
