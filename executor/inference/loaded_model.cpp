// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/process.h"
#include "base/setting.h"
#include "executor/plan/plan_part.h"
#include "executor/run/bind_plan.h"
#include "executor/session/facts.h"
#include "executor/session/initial_values.h"
#include "executor/session/shared_resources.h"
#include "executor/weights/class_names.h"
#include "executor/world/agreement.h"
#include "io/formats/layout.h"

namespace arbalest {

LoadedModel::LoadedModel(Graph graph, const SessionOptions& options, const InferenceRequest& asked)
    : prepared(prepare_inference(std::move(graph), options, asked)),
      plan(own_plan(prepared, options)),
      binding(bind_plan(plan, thread_count(options), options.execution.device_timeout, bind_options(prepared, options),
                        options.shared ? options.shared->devices() : make_device_cache())) {
  for (const ValueId output : loop().outputs) {
    const Value& value = loop().graph.values[output];
    const bool batched = !value.type.shape.empty() && value.type.shape[0] == loop().batch;
    if (!batched) {
      throw GraphError(fmt::format("'{}' is {}; expected a value with a row for each of the {} samples of a batch",
                                   value.name, to_string(value.type), loop().batch));
    }
  }
  put_weights(options);
}

Plan LoadedModel::own_plan(const Prepared& prepared, const SessionOptions& options) {
  const Plan whole = make_inference_plan(prepared.program, prepared.request);
  if (!options.ranks) return whole;
  const std::vector<std::string> lines = node_lines(prepared.graph);
  const PlanText text(whole);
  check_alike(*options.ranks, {{"build", build_text()},
                               long_fact("graph", {lines.size(), [&](size_t i) { return lines[i]; }}),
                               {"data", prepared.validation->describe()},
                               {"samples", samples_text(*prepared.validation)},
                               {name_of(SettingKey::SkipBad), fmt::format("{}", options.execution.skip_bad)},
                               {"seed", fmt::format("{}", options.numerics.seed)},
                               {"precision", std::string(name_of(options.numerics.precision))},
                               long_fact("plan", {text.size(), [&](size_t i) { return text.part(i); }})});
  return part_of(whole, options.ranks->rank());
}

void LoadedModel::put_weights(const SessionOptions& options) {
  std::optional<WeightsFile> file;
  const ArenaValues& arenas = prepared.program.training().arenas;
  if (!options.files.weights.empty()) {
    file.emplace(options.files.weights, options.files.weights_map, options.files.fresh);
    check_weights(*file, prepared.program.training().graph, {arenas.weights, arenas.statistics, arenas.frozen});
  }
  name_classes(file ? &*file : nullptr);
  const Initialisation start{options.numerics.seed, file ? &*file : nullptr, thread_count(options)};
  const InitialValues content = initial_values(loop(), *prepared.validation, start);
  if (options.ranks) check_alike(*options.ranks, {{"weights", sum_of(content)}});
  for (const Replica& replica : planned().replicas) put_values(*binding, replica, loop().graph, content);
}

void LoadedModel::name_classes(const WeightsFile* file) {
  class_names_ = prepared.validation->class_names();
  const std::vector<std::string> trained = file ? file->class_names() : std::vector<std::string>();
  if (class_names_.empty()) {
    class_names_ = trained;
    return;
  }
  const std::string other = other_classes(trained, class_names_);
  if (other.empty()) return;
  warn(fmt::format("{}: was trained on other classes than {} has: {}", file->path(), prepared.validation->describe(),
                   other));
  class_names_ = trained;
}

TensorType LoadedModel::output_type(size_t index) const {
  TensorType type = loop().graph.values[loop().outputs[index]].type;
  type.shape.erase(type.shape.begin());
  type.layout = Layout::RowMajor;
  if (type.dtype == DataType::Bfloat16) type.dtype = DataType::Float32;
  return type;
}

std::vector<std::byte> LoadedModel::read_output(const Replica& replica, size_t index, int64_t tick) const {
  const TensorType& type = loop().graph.values[loop().outputs[index]].type;
  std::vector<std::byte> row_major(size_t(type.bytes()));
  to_row_major(type, binding->address(replica.outputs[index], tick), row_major.data());
  if (type.dtype != DataType::Bfloat16) return row_major;
  std::vector<std::byte> wide(size_t(type.elements()) * sizeof(float));
  for (int64_t i = 0; i < type.elements(); ++i) {
    bfloat16 narrow;
    std::memcpy(&narrow, row_major.data() + size_t(i) * sizeof narrow, sizeof narrow);
    const auto value = float(narrow);
    std::memcpy(wide.data() + size_t(i) * sizeof value, &value, sizeof value);
  }
  return wide;
}

}  // namespace arbalest
