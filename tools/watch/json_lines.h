// SPDX-License-Identifier: Apache-2.0
#pragma once
// The reader of files that EventStream writes in JSON lines, each an object with an "event".

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace arbalest {

// The lines of a file: how many could be read, and the faults of the others.
struct JsonLines {
  int64_t read = 0;                 // lines that could be read
  int64_t whole = 0;                // bytes up to the end of the last whole line
  std::vector<std::string> faults;  // of each line that could not be read: "sweep.jsonl:7: 'trial' is missing"
};

// Gives the lines to `read`, in their order. A line that is no object with an "event", or for which `read` throws,
// counts as if it were not there, so that `read` keeps nothing of it. A last line without a line feed was cut short by
// the end of a process and is left out. A file that does not exist has no lines. Throws RunError for a file that
// cannot be read.
JsonLines read_json_lines(const std::string& path, const std::function<void(const nlohmann::ordered_json&)>& read);

// A warning for each fault: that its line does not count.
void warn_of_faults(const std::vector<std::string>& faults);

}  // namespace arbalest
