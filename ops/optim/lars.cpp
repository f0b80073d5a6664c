// SPDX-License-Identifier: Apache-2.0

// Lars: the optimiser "lars".

#include "ops/optim/lars.h"

#include "ops/definition.h"
#include "ops/optim/update_cpu.h"

namespace arbalest {

void register_optim_lars(OpRegistry& registry) {
  const auto check = [](const Node& train) {
    check_momentum(train);
    check_above_0(train, "trust_coefficient");
  };
  const OptimizerSpec optimizer{.name = "lars", .slots = {"velocity"}, .per_tensor = true, .check = check};
  Op op = update_op("Lars", "one step of LARS on flat arrays, with the step's learning rate", optimizer,
                    {float_spec("trust_coefficient", 0.001, "times the norm of a parameter over that of its direction"),
                     float_spec("momentum", 0.0, "share of the last step's direction that stays, below 1"),
                     int_spec("nesterov", 0, "1: Nesterov's momentum")});
  op.cost = elementwise_cost(10);
  op.samples = [optimizer] {
    return update_samples(optimizer,
                          {{"plain", {}},
                           {"momentum", {{"momentum", 0.9}, {"trust_coefficient", 0.5}, {"weight_decay", 1e-2}}},
                           {"nesterov", {{"momentum", 0.9}, {"trust_coefficient", 2.0}, {"nesterov", int64_t{1}}}}},
                          {-1});
  };
  op.cpu = update_cpu<LarsRule>;
  registry.add(std::move(op));
}

}  // namespace arbalest
