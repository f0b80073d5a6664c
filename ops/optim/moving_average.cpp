// SPDX-License-Identifier: Apache-2.0

// MovingAverage: one step of the exponential moving average of the weights (moving_average.h).

#include "ops/optim/moving_average.h"

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_moving_average(InferContext& context) {
  using In = MovingAverageInput;
  const Node& node = context.node();
  const TensorType& weights = floating_input(context, In::Weights, {1});
  expect_input(context, In::Weights, {master_type(weights.dtype), weights.shape},
               "since averages are in full precision");
  expect_input(context, In::Average, weights, "the type of 'weights'");
  expect_input(context, In::Progress, {DataType::Int64, {2}}, "the updates that the average has seen");
  const double decay = float_attribute(node, "decay");
  if (!(decay > 0 && decay < 1)) {
    context.fail(fmt::format("attribute 'decay' is {}; expected more than 0 and less than 1", decay));
  }
  const int64_t every = int_attribute_from(node, "every", 1);
  int_attribute_from(node, "period", every);
  context.set_output(MovingAverageOutput::Average, weights);
  context.set_output(MovingAverageOutput::Progress, {DataType::Int64, {2}});
}

template <typename T>
std::unique_ptr<Kernel> moving_average_kernel(const KernelRequest& request) {
  using In = MovingAverageInput;
  const int64_t count = request.inputs[In::Weights].elements();
  const MovingAverageSteps steps = MovingAverageSteps::of(request.node);
  return make_kernel([=](const KernelContext& context) {
    if (context.scalars && context.scalars->update == 0) return;
    const T *weights = input<T>(context, In::Weights), *average = input<T>(context, In::Average);
    const MovingAverageProgress before = *input<MovingAverageProgress>(context, In::Progress);
    T* moved = output<T>(context, MovingAverageOutput::Average);
    const T share = T(steps.share(before));
    parallel_for(count, 1, [=](int64_t begin, int64_t end) {
      if (before.updates == 0) {
        std::copy(weights + begin, weights + end, moved + begin);
      } else {
        ARBALEST_INDEPENDENT
        for (int64_t i = begin; i < end; ++i) moved[i] = average[i] + share * (weights[i] - average[i]);
      }
    });
    *output<MovingAverageProgress>(context, MovingAverageOutput::Progress) = steps.after(before);
  });
}

std::unique_ptr<Kernel> moving_average_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? moving_average_kernel<double>(request)
                                                      : moving_average_kernel<float>(request);
}

std::vector<Sample> moving_average_samples() {
  // `seen`: both numbers of the progress.
  const auto sample = [](std::string name, int64_t count, double decay, int64_t seen, int64_t every, int64_t period) {
    Sample made{.name = std::move(name),
                .inputs = {{{DataType::Float32, {count}}},
                           {{DataType::Float32, {count}}},
                           {{DataType::Int64, {2}}, double(seen), double(seen), false}},
                .output_count = 2,
                .attributes = {{"decay", decay}, {"every", every}, {"period", period}},
                .tolerance = 1e-6};
    return made;
  };
  Sample idle = sample("no update", 1001, 0.5, 3, 1, 7);
  idle.scalars.update = 0;
  idle.in_place = true;
  return {sample("the first update", 1003, 0.999, 0, 1, 1),
          sample("the second", 1001, 0.999, 1, 1, 2),
          sample("aligned", 4096, 0.75, 2, 1, 5),
          sample("a group of updates", 100003, 0.9, 4, 4, 19),
          sample("a group that is cut short", 1001, 0.9, 4, 3, 6),
          sample("the first group", 64, 0.9, 0, 4, 4),
          sample("after many updates", 1000, 0.9999, 1000000, 1, 1000001),
          sample("decay near 1", 1000, 1 - 1e-15, 20, 2, 40),
          sample("one element", 1, 0.5, 1, 1, 3),
          idle};
}

}  // namespace

void register_optim_moving_average(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "MovingAverage",
                .doc = "a step of the exponential moving average of the weights, corrected for its start",
                .inputs = {{.name = "weights"}, {.name = "average"}, {.name = "progress"}},
                .outputs = {{.name = "new_average"}, {.name = "new_progress"}},
                .attributes = {required_spec("decay", AttributeKind::Float, "of an update"),
                               int_spec("every", 1, "updates that make one step"),
                               int_spec("period", 1,
                                        "updates after which a step is of what is left of them, and all begins anew")},
                .internal = true,
                .side_effect = true,
                .infer = infer_moving_average,
                .cost = elementwise_cost(3),
                .samples = moving_average_samples,
                .aliases = {{0, 1}, {1, 2}},
                .cpu = moving_average_cpu});
}

}  // namespace arbalest
