// SPDX-License-Identifier: Apache-2.0

// Rmsprop: the optimiser "rmsprop".

#include "ops/optim/rmsprop.h"

#include "ops/definition.h"
#include "ops/optim/update_cpu.h"

namespace arbalest {

void register_optim_rmsprop(OpRegistry& registry) {
  const auto check = [](const Node& train) {
    check_share(train, "momentum");
    check_share(train, "alpha");
    flag_attribute(train, "centered");
    check_above_0(train, "epsilon");
  };
  const OptimizerSpec optimizer{
      .name = "rmsprop", .slots = {"mean_square", "velocity", "mean_gradient"}, .check = check};
  Op op = update_op("Rmsprop", "one step of RMSprop on flat arrays, with the step's learning rate", optimizer,
                    {float_spec("alpha", 0.99, "share of the mean of squared gradients that stays, below 1"),
                     float_spec("epsilon", 1e-8, "added to the root of the mean of squared gradients"),
                     float_spec("momentum", 0.0, "share of the last step's direction that stays, below 1"),
                     int_spec("centered", 0, "1: by the variance of gradients instead of the mean of their squares")});
  op.cost = elementwise_cost(12);
  op.samples = [optimizer] {
    // Mean squares far above the squares of mean gradients, as the difference of equals would be rounding alone.
    std::vector<Sample> all =
        update_samples(optimizer,
                       {{"defaults", {{"epsilon", 1e-3}}},
                        {"momentum", {{"alpha", 0.9}, {"epsilon", 1e-2}, {"momentum", 0.9}, {"weight_decay", 1e-2}}},
                        {"centered", {{"alpha", 0.9}, {"epsilon", 1e-2}, {"momentum", 0.5}, {"centered", int64_t{1}}}}},
                       {0.5, -1, -0.5});
    for (Sample& sample : all) {
      Sample::Input& mean_gradient = sample.inputs[UpdateOperands::kFirstSlot + 2];
      if (mean_gradient.low == -0.5) mean_gradient.high = 0.5;
    }
    return all;
  };
  op.cpu = update_cpu<RmspropRule>;
  registry.add(std::move(op));
}

}  // namespace arbalest
