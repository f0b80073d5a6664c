// Lars: the optimiser "lars".

#include "ops/optim/lars.h"

#include "ops/definition.h"
#include "ops/optim/update_cpu.h"

namespace arbalest {

void register_optim_lars(OpRegistry& registry) {
  const OptimizerSpec optimizer{"lars", {"velocity"}, true};
  Op op = update_op("Lars", "one step of LARS on flat arrays, with the step's learning rate", optimizer,
                    {float_spec("trust_coefficient", 0.001, "as in Train"), float_spec("momentum", 0.0, "as in Train"),
                     int_spec("nesterov", 0, "as in Train")});
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
