// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/trials/cell_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "executor/devices/device.h"
#include "executor/plan/device_list.h"
#include "executor/plan/make_plan.h"
#include "executor/session/facts.h"
#include "executor/session/monitor.h"
#include "graph/file/graph_file.h"
#include "graph/file/overrides.h"
#include "ops/builtin_ops.h"
#include "ops/names.h"
#include "tools/command/options.h"
#include "tools/command/plan_summary.h"
#include "tools/command/session_setup.h"
#include "tools/command/world_setup.h"
#include "tools/experiment/trials/machine_state.h"
#include "tools/experiment/trials/trials.h"
#include "tools/measure/bench_scaling.h"

namespace arbalest {
namespace {

// A command line of this program, understood.
struct CellCommand {
  Command command;
  GraphOptions graph;                     // with the learners of a cell
  std::optional<ScalingOptions> scaling;  // of throughput
};

CellCommand understood(const std::vector<std::string>& words) {
  std::vector<const char*> pointers = {"arbalest"};
  for (const std::string& word : words) pointers.push_back(word.c_str());
  CellCommand cell{parse_command_line(int(pointers.size()), pointers.data()), {}, {}};
  if (const auto* run = options_if<RunOptions>(cell.command)) {
    cell.graph = *run;
  } else if (const auto* scaling = options_if<ScalingOptions>(cell.command)) {
    cell.graph = *scaling;
    cell.graph.session.learners.per_device = scaling->learners.front();
    cell.scaling = *scaling;
  } else {
    std::string text = options_if<Exit>(cell.command) ? options_if<Exit>(cell.command)->text : "";
    constexpr std::string_view kBefore = "arbalest: ";
    if (text.starts_with(kBefore)) text.erase(0, kBefore.size());
    throw GraphError(text.substr(0, text.find_last_not_of('\n') + 1));
  }
  return cell;
}

std::string hash_of_graph(const Graph& graph, const std::vector<std::string>& files) {
  const std::map<std::string, std::string> of_files = hashes_of_files(graph, files);
  if (files.size() == 1 && !files[0].ends_with(".onnx")) return of_files.at(files[0]);
  std::string hashes;
  for (const std::string& file : files) hashes += of_files.at(file);
  return hash_of(hashes);
}

// Throws GraphError if validation does not measure the rule's metric, or never reaches one of its targets.
void check_rule(const Prepared& prepared, const AccuracyRule& rule) {
  ValidationRules rules;
  rules.targets = targets_of(rule);
  if (rules.targets.empty()) rules.metric = rule.metric + (rule.lower ? ":min" : ":max");
  const Monitor monitor(prepared.program, rules, no_observer(), prepared.training->class_names());
}

std::string models_of(const std::vector<PlanDevice>& devices) {
  std::vector<std::string> models;
  for (const PlanDevice& device : devices) {
    models.push_back(device.kind == PlanDevice::Kind::Cuda
                         ? cuda_device_model(device.index).name
                         : fmt::format("{} ({} cores)", cpu_model(), usable_cores().size()));
  }
  return fmt::format("{}", fmt::join(models, ", "));
}

}  // namespace

std::vector<Target> targets_of(const AccuracyRule& rule) {
  std::vector<Target> targets;
  for (const double target : rule.targets) {
    targets.push_back({rule.metric, rule.lower ? Target::Op::LessEqual : Target::Op::GreaterEqual, target});
  }
  return targets;
}

std::string hash_of_file(const std::string& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  return hash_of({bytes.begin(), bytes.end()});
}

std::map<std::string, std::string> hashes_of_files(const Graph& graph, const std::vector<std::string>& files) {
  if (files.size() == 1 && !files[0].ends_with(".onnx")) return {{files[0], hash_of(write_graph_text(graph))}};
  std::map<std::string, std::string> hashes;
  for (const std::string& file : files) hashes[file] = hash_of_file(file);
  return hashes;
}

std::vector<PlanDevice> devices_of(const BenchCell& cell) {
  const std::string devices = setting_of(cell.settings, "devices");
  return parse_devices(devices.empty() ? "auto" : devices, default_devices);
}

Identities::Identities(const std::string& program) : build_(program.empty() ? build_text() : hash_of_file(program)) {}

Identity Identities::of(const BenchCell& cell, const std::vector<std::string>& words) {
  Identity identity{"", fmt::format("{}", fmt::join(words, " ")), build_, models_of(devices_of(cell))};
  if (const int hosts = hosts_in(cell.settings); hosts > 1) identity.devices += fmt::format(" × {} hosts", hosts);
  if (!cell.peer.empty()) {
    identity.build = "";
    return identity;
  }
  try {
    const GraphOptions options = understood(words).graph;
    identity.options = "";
    for (size_t w = 0; w < words.size(); ++w) {
      if (words[w] == options.graph) continue;
      const bool weights = w > 0 && words[w - 1] == "--weights";  // their content counts, as a graph's does
      identity.options += (weights ? hash_of_weights(words[w]) : words[w]) + " ";
    }
    const Known& read = known(options);
    std::vector<NamedAssignment> named;
    for (const auto& [setting, value] : cell.settings) {
      const std::string attribute = attribute_of(setting);
      if (!attribute.empty()) named.push_back({setting, attribute + "=" + value});
    }
    refuse_two_names(read.graph, named);
    Graph changed = read.graph;
    for (const std::string& change : options.set) apply_override(changed, change);
    identity.graph = read.hash;
  } catch (const GraphError& error) {
    throw GraphError(fmt::format("{}: {}", cell.name, error.what()));
  }
  return identity;
}

const Identities::Known& Identities::known(const GraphOptions& options) {
  std::string key = options.graph;
  for (const ModelFile& model : options.models) key += "\n" + model.name + "=" + model.path;
  Known& known = graphs_[key];
  if (known.hash.empty()) {
    known.graph = load_graph(options.graph, builtin_ops(), 0, options.models, &known.files);
    known.hash = hash_of_graph(known.graph, known.files);
  }
  return known;
}

std::vector<std::string> Identities::files_of(const BenchCell& cell) {
  return known(understood(scaling_words(cell.settings)).graph).files;
}

std::string Identities::train_node(const BenchCell& cell) {
  const Node* train = known(understood(scaling_words(cell.settings)).graph).graph.find_op(op::Train);
  return train ? train->name : "";
}

const std::string& Identities::hash_of_weights(const std::string& path) {
  std::string& hash = weights_[path];
  if (hash.empty()) hash = hash_of_file(path);
  return hash;
}

PlannedCell plan_of(const std::vector<std::string>& words, int64_t hosts) {
  const CellCommand cell = understood(words);
  SessionOptions session = session_options(cell.graph);
  if (cell.scaling) train_without_end(session);
  if (hosts > 1) session.learners.devices = on_hosts(hosts, session.learners.devices);
  Graph graph = cell.scaling ? graph_to_measure(*cell.scaling)
                             : load_graph(cell.graph.graph, builtin_ops(), 0, cell.graph.models);
  if (!cell.scaling) {
    for (const std::string& change : cell.graph.set) apply_override(graph, change);
  }
  PlannedCell planned;
  planned.learners = session.learners.per_device;
  planned.prepared = prepare(std::move(graph), session);
  planned.plan = make_plan(planned.prepared.program, planned.prepared.request);
  return planned;
}

CellNeeds needs_of(const std::vector<std::string>& words, int64_t hosts, int64_t gpu_memory, const AccuracyRule* rule) {
  CellNeeds needs;
  try {
    const PlannedCell cell = plan_of(words, hosts);
    if (rule) check_rule(cell.prepared, *rule);
    for (size_t d = 0; d < cell.plan.devices.size(); ++d) {
      needs.bytes = std::max(needs.bytes, planned_bytes(cell.plan, int32_t(d)));
    }
    needs.samples = cell.prepared.total_epochs * double(cell.prepared.request.training_samples);
    if (const Node* validate = cell.prepared.graph.find_op(op::Validate)) {
      const double every = double(std::max<int64_t>(1, int_attribute(*validate, "every_epochs")));
      needs.validated =
          std::floor(cell.prepared.total_epochs / every) * double(cell.prepared.request.validation_samples);
    }
    const std::vector<std::string> notes = memory_notes(cell.plan, cell.prepared, gpu_memory);
    needs.too_large = !notes.empty();
    if (needs.too_large) needs.fault = "does not fit: " + notes.front();
  } catch (const Error& error) {
    needs.fault = error.what();
  }
  return needs;
}

}  // namespace arbalest
