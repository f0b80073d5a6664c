// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/fields_without_data.h"

#include <algorithm>
#include <functional>
#include <string>

#include "executor/weights/weights_file.h"
#include "graph/measures.h"
#include "graph/op.h"
#include "ops/loss/operands.h"
#include "ops/names.h"

namespace arbalest {
namespace {

class FieldsOnly final : public Source {
 public:
  explicit FieldsOnly(std::vector<Field> fields) : fields_(std::move(fields)) {}
  std::vector<Field> fields() const override { return fields_; }
  int64_t size() const override { return 1; }
  void fill(std::span<const SampleRef>, std::span<std::byte* const>) const override {
    throw RunError("only the fields of the samples are known");
  }
  std::string describe() const override { return "samples of " + to_string(fields_); }

 private:
  std::vector<Field> fields_;
};

// Whether a node of such an operator takes `value` as its target.
bool is_target(const Graph& graph, ValueId value, const std::function<bool(const Op&)>& such) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return such(*node.op) && node.inputs.size() > LossInput::Target && node.inputs[LossInput::Target] == value;
  });
}

bool takes_classes(const Op& op) {
  return is_loss_of_classes(op) || op.is(op::MixImages);
}

}  // namespace

std::vector<Field> fields_without_data(const Graph& graph, const FileOptions& files) {
  const Node* prefetch = graph.find_op(op::Prefetch);
  if (!prefetch) return {};
  std::vector<std::string> names;
  if (!files.weights.empty()) names = WeightsFile(files.weights).class_names();
  std::vector<Field> fields;
  for (const ValueId output : prefetch->outputs) {
    if (output == kNone) return {};
    const std::string& name = graph.values[output].name;
    const bool file = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                  [&](const Node& node) { return node.op->prepare && node.inputs.at(0) == output; });
    if (file) {
      fields.push_back({name, DataType::String, {}});
    } else if (is_target(graph, output, takes_classes)) {
      fields.push_back({name, DataType::Int32, {}, int64_t(names.size())});
    } else if (!names.empty() && is_target(graph, output, is_loss_of_labels)) {
      fields.push_back({name, DataType::Float32, {int64_t(names.size())}});
    } else {
      return {};
    }
  }
  return fields;
}

std::shared_ptr<const Source> source_of_fields(std::vector<Field> fields) {
  return std::make_shared<FieldsOnly>(std::move(fields));
}

}  // namespace arbalest
