// Prefetch: the batches of a source, some of them ahead; the executor plans reading and copying.

#include <fmt/format.h>

#include <algorithm>

#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_prefetch(InferContext& context) {
  const Node& node = context.node();
  if (string_attribute(node, "source").empty()) {
    context.fail("attribute 'source' is empty; expected KIND:PATH, such as \"mnist:data/mnist\"");
  }
  const int64_t batch = int_attribute_from(node, "batch", 1);
  int_attribute_from(node, "depth", 1);
  const std::vector<int64_t> sample = ints_attribute(node, "sample_shape");
  if (sample.empty()) context.fail("the source's sample shape is not known");
  if (sample.size() != 3 || *std::min_element(sample.begin(), sample.end()) < 1) {
    context.fail(
        fmt::format("attribute 'sample_shape' is {}; expected [channels, height, width]", to_string(sample, '[', ']')));
  }
  context.set_output(0, {DataType::Uint8, {batch, sample[0], sample[1], sample[2]}});
  context.set_output(1, {DataType::Int32, {batch}});
}

}  // namespace

void register_prefetch(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Prefetch",
                .doc = "batches of images and labels from a source, `depth` batches ahead",
                .outputs = {{.name = "image"}, {.name = "label"}},
                .attributes = {required_spec("source", AttributeKind::String, "KIND:PATH, such as mnist:data/mnist"),
                               string_spec("split", "train", "the part of the source"),
                               required_spec("batch", AttributeKind::Int, "samples of a batch, per learner"),
                               int_spec("depth", 3, "batches that are made ahead"),
                               ints_spec("sample_shape", {}, "[channels, height, width], set once the source is open")},
                .infer = infer_prefetch});
}

}  // namespace arbalest
