// SPDX-License-Identifier: Apache-2.0

// Sgd: the optimiser "sgd".

#include "ops/optim/sgd.h"

#include "ops/definition.h"
#include "ops/optim/update_cpu.h"

namespace arbalest {

void register_optim_sgd(OpRegistry& registry) {
  const auto plain = [](const Node& train) { return float_attribute(train, "momentum") == 0; };
  const OptimizerSpec optimizer{.name = "sgd", .slots = {"velocity"}, .check = check_momentum, .plain = plain};
  Op op = update_op("Sgd", "one step of gradient descent on flat arrays, with the step's learning rate", optimizer,
                    {float_spec("momentum", 0.0, "share of the last step's direction that stays, below 1"),
                     int_spec("nesterov", 0, "1: Nesterov's momentum")});
  op.cost = elementwise_cost(6);
  op.samples = [optimizer] {
    return update_samples(optimizer,
                          {{"plain", {}},
                           {"momentum", {{"momentum", 0.9}, {"weight_decay", 1e-4}}},
                           {"nesterov", {{"momentum", 0.9}, {"nesterov", int64_t{1}}, {"weight_decay", 5e-4}}}},
                          {-1});
  };
  op.cpu = update_cpu<SgdRule>;
  registry.add(std::move(op));
}

}  // namespace arbalest
