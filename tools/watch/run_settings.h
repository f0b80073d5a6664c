// SPDX-License-Identifier: Apache-2.0
#pragma once
// The settings of a run and where it runs, as its log and TensorBoard show them.

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/watch/event_record.h"

namespace arbalest {

// Numbers are numbers, and texts are texts; what is repeatable is a list.
struct RunSettings {
  std::string time;                   // of the start: "2025-03-01T12:30:00Z"
  std::vector<std::string> command;   // its words
  nlohmann::ordered_json options;     // by name, without dashes; null: not given, and without a default
  nlohmann::ordered_json attributes;  // of the graph's nodes: "train.lr", as --set names them, with their defaults
  // Options and the attributes of what is neither the model's nor a constant of it: few enough to compare runs by.
  std::vector<std::pair<std::string, Hyperparameter>> hyperparameters;
  nlohmann::ordered_json host;  // name, system, cpu, cores, memory_bytes
};

}  // namespace arbalest
