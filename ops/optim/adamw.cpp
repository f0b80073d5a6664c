// SPDX-License-Identifier: Apache-2.0

// Adamw: the optimiser "adamw".

#include "ops/optim/adamw.h"

#include "ops/definition.h"
#include "ops/optim/update_cpu.h"

namespace arbalest {

void register_optim_adamw(OpRegistry& registry) {
  const OptimizerSpec optimizer{.name = "adamw", .slots = {"first_moment", "second_moment"}, .check = check_moments};
  Op op = update_op("Adamw", "one step of AdamW on flat arrays, with the step's learning rate", optimizer,
                    {float_spec("beta1", 0.9, "share of the mean of gradients that stays, below 1"),
                     float_spec("beta2", 0.999, "share of the mean of squared gradients that stays, below 1"),
                     float_spec("epsilon", 1e-8, "added to the root of the mean of squared gradients")});
  op.cost = elementwise_cost(14);
  op.samples = [optimizer] {
    return update_samples(optimizer,
                          {{"defaults", {}},
                           {"decay", {{"weight_decay", 0.1}, {"beta1", 0.8}, {"beta2", 0.95}, {"epsilon", 1e-3}}},
                           {"no memory", {{"beta1", 0.0}, {"beta2", 0.0}}}},
                          {-1, 0});
  };
  op.cpu = update_cpu<AdamwRule>;
  registry.add(std::move(op));
}

}  // namespace arbalest
