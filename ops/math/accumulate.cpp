// SPDX-License-Identifier: Apache-2.0

// Accumulate: the mean of several batches' gradients, or of their statistics, one after the other.

#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/names.h"

namespace arbalest {
namespace {

void infer_accumulate(InferContext& context) {
  using In = AccumulateInput;
  const TensorType& gradients = floating_input(context, In::Gradients, {1});
  expect_input(context, In::Gradients, {master_type(gradients.dtype), gradients.shape},
               "since sums are in full precision");
  expect_input(context, In::Sum, gradients, "the type of 'gradients'");
  context.set_output(0, gradients);
}

template <typename T>
std::unique_ptr<Kernel> accumulate_kernel(const KernelRequest& request) {
  using In = AccumulateInput;
  const int64_t count = request.inputs[In::Gradients].elements();
  const T scale = T(float_attribute(request.node, "scale"));
  return make_kernel([=](const KernelContext& context) {
    const bool first = context.scalars->accumulated == 0;
    const T *gradients = input<T>(context, In::Gradients), *sum = input<T>(context, In::Sum);
    T* new_sum = output<T>(context, 0);
    parallel_for(count, 1, [=](int64_t begin, int64_t end) {
      if (first) {
        ARBALEST_INDEPENDENT
        for (int64_t i = begin; i < end; ++i) new_sum[i] = scale * gradients[i];
      } else {
        ARBALEST_INDEPENDENT
        for (int64_t i = begin; i < end; ++i) new_sum[i] = sum[i] + scale * gradients[i];
      }
    });
  });
}

std::unique_ptr<Kernel> accumulate_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? accumulate_kernel<double>(request)
                                                      : accumulate_kernel<float>(request);
}

std::vector<Sample> accumulate_samples() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto sample = [](std::string name, int64_t count, int32_t accumulated) {
    Sample made{.name = std::move(name),
                .inputs = std::vector<Sample::Input>(2, {{DataType::Float32, {count}}}),
                .attributes = {{"scale", 0.25}},
                .tolerance = 1e-6,
                .scalars = {.accumulated = accumulated}};
    // The first batch must not read the sum that earlier batches left, so here it is infinity.
    if (accumulated == 0) made.inputs[AccumulateInput::Sum].low = made.inputs[AccumulateInput::Sum].high = kInfinity;
    return made;
  };
  return {sample("the first batch", 1001, 0), sample("a later batch", 1003, 2), sample("aligned", 4096, 1),
          sample("one element", 1, 1), sample("a large model", 100003, 3)};
}

}  // namespace

void register_math_accumulate(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Accumulate",
                .doc = "adds a batch's scaled gradients to the sum, which starts from 0 with the first batch",
                .inputs = {{.name = "gradients"}, {.name = "sum"}},
                .outputs = {{.name = "new_sum"}},
                .attributes = {required_spec("scale", AttributeKind::Float, "1 / the number of batches")},
                .internal = true,
                .side_effect = true,
                .infer = infer_accumulate,
                .cost = elementwise_cost(2),
                .samples = accumulate_samples,
                .aliases = {{0, 1}},
                .cpu = accumulate_cpu});
}

}  // namespace arbalest
