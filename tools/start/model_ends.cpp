// SPDX-License-Identifier: Apache-2.0
#include "tools/start/model_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "graph/file/graph_source.h"
#include "ops/names.h"

namespace arbalest {
namespace {

// The images' axes, of which one has one or three channels.
void take_image(const std::string& path, const GraphSource& model, ModelEnds& ends) {
  const auto input = std::find_if(model.inputs.begin(), model.inputs.end(),
                                  [](const SourceValue& value) { return !value.data && value.type.has_value(); });
  const auto channels = [](int64_t extent) { return extent == 1 || extent == 3; };
  if (input == model.inputs.end() || input->type->shape.size() != 4 ||
      (!channels(input->type->shape[1]) && !channels(input->type->shape[3]))) {
    throw GraphError(fmt::format("{}: found {}, expected a model of images of one or three channels", path,
                                 input == model.inputs.end() ? "no input" : "the input " + to_string(*input->type)));
  }
  const Shape& shape = input->type->shape;
  ends.channels_last = !channels(shape[1]);
  const auto extent = [&](size_t axis) { return std::max<int64_t>(0, shape[axis]); };
  ends.channels = extent(ends.channels_last ? 3 : 1);
  ends.height = extent(ends.channels_last ? 1 : 2);
  ends.width = extent(ends.channels_last ? 2 : 3);
}

// Back from the output to the first matrix product on the way.
std::string features_of(const GraphSource& model) {
  std::unordered_map<std::string_view, const SourceNode*> made_by;
  for (const SourceNode& node : model.nodes) {
    for (const SourceName& output : node.outputs) made_by.emplace(output.text, &node);
  }
  std::string_view at = model.outputs.front().name.text;
  for (size_t steps = 0; steps < model.nodes.size(); ++steps) {
    const auto node = made_by.find(at);
    if (node == made_by.end() || node->second->inputs.empty()) return "";
    const SourceNode& maker = *node->second;
    if (maker.op.text == op::Gemm || maker.op.text == op::MatMul) return maker.inputs[0].text;
    const auto computed = std::find_if(maker.inputs.begin(), maker.inputs.end(),
                                       [&](const SourceName& input) { return made_by.contains(input.text); });
    if (computed == maker.inputs.end()) return "";
    at = computed->text;
  }
  return "";
}

}  // namespace

ModelEnds ends_of(const std::string& path) {
  const GraphSource model = read_source(path);
  ModelEnds ends;
  take_image(path, model, ends);
  if (!model.outputs.empty()) ends.features = features_of(model);
  return ends;
}

}  // namespace arbalest
