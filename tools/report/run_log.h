// SPDX-License-Identifier: Apache-2.0
#pragma once
// Logs of runs (run --log: an event a line) as the page of a report carries them.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace arbalest {

// A run:
//   name
//   start         the event, or null
//   progress, epochs, validations   points, each an object of
//     epochs, iteration, seconds    where the points are: epochs with their fraction
//     values                        by name ("loss", "accuracy"): {at, value}, the points that have it and what it is
//     there
//   tunes, checkpoints, end, error  the events; null if there is none of the last two
//   rollbacks     [{iteration, from_iteration, seconds, reason}]; points of what was given up by them are left out
//   skipped       samples that could not be read
//   faults        [{line, what}]: lines that could not be read, the first of them; faulty_lines: how many
using RunLog = nlohmann::ordered_json;

// The runs in a log: one, unless logs were joined. Lines that are damaged are faults of their run, and the rest is
// read. `name` is what the run is called. Throws RunError if the file cannot be read or holds no event at all.
std::vector<RunLog> read_run_logs(const std::string& path, const std::string& name);

}  // namespace arbalest
