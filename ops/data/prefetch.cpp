// SPDX-License-Identifier: Apache-2.0

// Prefetch: the batches of a source, some of them ahead; the executor plans reading and copying.

#include "graph/field.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

AttributeSpec cache_spec() {
  AttributeSpec spec =
      string_spec("cache", "none",
                  "host: what host nodes make of a sample stays in the host's memory; device: all samples stay on each "
                  "device, where batches are made of them");
  spec.choices = {"none", "host", "device"};
  return spec;
}

void infer_prefetch(InferContext& context) {
  const Node& node = context.node();
  const int64_t batch = int_attribute_from(node, "batch", 1);
  int_attribute_from(node, "depth", 0);
  flag_attribute(node, "by_name");
  const std::vector<Field> fields = fields_of(node);
  if (fields.empty() && string_attribute(node, "source").empty()) {
    context.fail("attribute 'source' is empty; expected KIND:PATH, such as \"mnist:data/mnist\"");
  }
  if (context.graph().find_op("arbalest.Prefetch") != &node) {
    context.fail("the graph has a second arbalest.Prefetch; expected one, with an output for each field");
  }
  if (fields.empty()) context.fail("the source's fields are not known");
  const std::vector<int> chosen = fields_of_outputs(context.graph(), node, fields);
  for (size_t output = 0; output < chosen.size(); ++output) {
    if (chosen[output] != kNone) context.set_output(output, fields[size_t(chosen[output])].batch(batch));
  }
}

}  // namespace

void register_data_prefetch(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "Prefetch",
       .doc = "batches of a source's fields, such as image and label, `depth` batches ahead",
       .outputs = {{.name = "field", .arity = OperandSpec::Variadic}},
       .attributes = {required_spec("source", AttributeKind::String, "KIND:PATH, such as mnist:data/mnist"),
                      string_spec("split", "train", "the part of the source"),
                      required_spec("batch", AttributeKind::Int, "samples of a batch, per learner"),
                      int_spec("depth", 3,
                               "batches that are made ahead; 0: each is made once the step before has ended"),
                      cache_spec(),
                      int_spec("by_name", 0,
                               "1: outputs are fields by their names; 0: by their places where the names differ"),
                      strings_spec("fields", {}, "the source's fields, set once the source is open")},
       .layout = std::nullopt,
       .infer = infer_prefetch});
}

}  // namespace arbalest
