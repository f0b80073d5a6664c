// SPDX-License-Identifier: Apache-2.0
#include "tools/command/run_settings.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <functional>
#include <optional>
#include <thread>
#include <type_traits>
#include <variant>

#include "base/memory/host_memory.h"
#include "base/number.h"
#include "executor/devices/device.h"
#include "executor/training/utc_time.h"
#include "graph/attributes.h"
#include "graph/file/overrides.h"
#include "graph/op.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

// A word of the command line: a number if it is written as one.
Json value_of(const std::string& word) {
  if (const auto whole = read_number<int64_t>(word)) return *whole;
  const auto number = read_number<double>(word);
  if (number && word.find_first_of("0123456789") != word.npos) return *number;
  return word;
}

Json options_json(const std::vector<OptionValue>& values) {
  Json options = Json::object();
  for (const OptionValue& option : values) {
    Json& value = options[option.name];
    if (option.flag) {
      value = !option.words.empty();
    } else if (option.repeatable) {
      value = option.words;
    } else if (!option.words.empty()) {
      value = value_of(option.words.front());
    }
  }
  return options;
}

// Long lists are constants of the model rather than settings: only their length is shown.
Json attribute_json(const Attribute& attribute) {
  constexpr size_t kMost = 16;
  return std::visit(
      [](const auto& value) -> Json {
        if constexpr (requires { value.push_back(value.front()); } &&
                      !std::is_same_v<decltype(value), const std::string&>) {
          if (value.size() > kMost) return fmt::format("{} values", value.size());
        }
        return value;
      },
      attribute);
}

// Data, augmentation, losses, optimiser and synchronisation, rather than the model's operators and layers.
bool trains(const Node& node) {
  return node.op->domain == "arbalest" && !node.op->is_layer();
}

Json attributes_json(const Graph& graph, const std::function<bool(const Node&)>& wanted) {
  Json attributes = Json::object();
  const Table<NodeId, std::string> names = override_names(graph);
  for (const NodeId n : graph.nodes.ids()) {
    const Node& node = graph.nodes[n];
    if (!wanted(node)) continue;
    for (const AttributeSpec& spec : node.op->attributes) {
      const Attribute* written = node.attributes.find(spec.name);
      if (written == nullptr && !spec.fallback) continue;
      attributes[names[n] + "." + spec.name] = attribute_json(written ? *written : *spec.fallback);
    }
  }
  return attributes;
}

void add_hyperparameters(std::vector<std::pair<std::string, Hyperparameter>>& all, const Json& values) {
  for (const auto& [name, value] : values.items()) {
    if (value.is_null()) continue;
    if (value.is_boolean()) {
      all.emplace_back(name, value.get<bool>());
    } else if (value.is_number()) {
      all.emplace_back(name, value.get<double>());
    } else {
      all.emplace_back(name, value.is_string() ? value.get<std::string>()
                                               : value.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
  }
}

Json host_json() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  utsname system = {};
  uname(&system);
  return {{"name", name},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
          {"cpu", cpu_model()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", host_memory()}};
}

}  // namespace

RunSettings run_settings(const RunOptions& options, const Graph& graph) {
  RunSettings settings;
  settings.time = utc_time(std::time(nullptr));
  settings.command = options.command_line;
  settings.options = options_json(options.given);
  settings.attributes = attributes_json(graph, [](const Node&) { return true; });
  settings.host = host_json();
  add_hyperparameters(settings.hyperparameters, settings.options);
  add_hyperparameters(settings.hyperparameters, attributes_json(graph, trains));
  return settings;
}

}  // namespace arbalest
