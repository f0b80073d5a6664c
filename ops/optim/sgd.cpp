// Sgd: the optimiser "sgd".

#include "ops/optim/sgd.h"

#include "ops/definition.h"
#include "ops/optim/update_cpu.h"

namespace arbalest {

void register_optim_sgd(OpRegistry& registry) {
  const OptimizerSpec optimizer{"sgd", {"velocity"}};
  Op op = update_op("Sgd", "one step of gradient descent on flat arrays, with the step's learning rate", optimizer,
                    {float_spec("momentum", 0.0, "as in Train"), int_spec("nesterov", 0, "as in Train")});
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
