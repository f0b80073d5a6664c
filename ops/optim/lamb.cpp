// SPDX-License-Identifier: Apache-2.0

// Lamb: the optimiser "lamb".

#include "ops/optim/lamb.h"

#include "ops/definition.h"
#include "ops/optim/update_cpu.h"

namespace arbalest {

void register_optim_lamb(OpRegistry& registry) {
  const OptimizerSpec optimizer{
      .name = "lamb", .slots = {"first_moment", "second_moment"}, .per_tensor = true, .check = check_moments};
  Op op = update_op("Lamb", "one step of LAMB on flat arrays, with the step's learning rate", optimizer,
                    {float_spec("beta1", 0.9, "share of the mean of gradients that stays, below 1"),
                     float_spec("beta2", 0.999, "share of the mean of squared gradients that stays, below 1"),
                     float_spec("epsilon", 1e-8, "added to the root of the mean of squared gradients")});
  op.cost = elementwise_cost(28);
  op.samples = [optimizer] {
    return update_samples(
        optimizer,
        {{"defaults", {}}, {"decay", {{"weight_decay", 0.1}, {"beta1", 0.8}, {"beta2", 0.95}, {"epsilon", 1e-3}}}},
        {-1, 0});
  };
  op.cpu = update_cpu<LambRule>;
  registry.add(std::move(op));
}

}  // namespace arbalest
