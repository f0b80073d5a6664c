// Identity: the input under another name. Its output may share the input's memory, and then there is nothing to do.

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

std::unique_ptr<Kernel> identity_cpu(const KernelRequest& request) {
  const int64_t bytes = request.outputs[0].bytes();
  return make_kernel([bytes](const KernelContext& context) {
    if (context.outputs[0] != context.inputs[0]) std::memcpy(context.outputs[0], context.inputs[0], size_t(bytes));
  });
}

std::vector<Sample> samples() {
  return {{.name = "matrix", .inputs = {{{DataType::Float32, {5, 7}}}}, .tolerance = 0},
          {.name = "image", .inputs = {{{DataType::Float32, {2, 3, 5, 4}}}}, .tolerance = 0}};
}

}  // namespace

void register_math_identity(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Identity",
                .doc = "X, unchanged",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .layout = std::nullopt,
                .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
                .grad =
                    [](GradContext& c) {
                      if (c.needs_gradient(0)) c.set_input_gradient(0, c.output_gradient(0));
                    },
                .cost = elementwise_cost(0),
                .samples = samples,
                .aliases = {{0, 0}},
                .cpu = identity_cpu});
}

}  // namespace arbalest
