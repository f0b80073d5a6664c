// Rmsprop: the optimiser "rmsprop".

#include "ops/optim/rmsprop.h"

#include "ops/definition.h"
#include "ops/optim/update_cpu.h"

namespace arbalest {

void register_optim_rmsprop(OpRegistry& registry) {
  const OptimizerSpec optimizer{"rmsprop", {"mean_square", "velocity", "mean_gradient"}};
  Op op = update_op("Rmsprop", "one step of RMSprop on flat arrays, with the step's learning rate", optimizer,
                    {float_spec("alpha", 0.99, "as in Train"), float_spec("epsilon", 1e-8, "as in Train"),
                     float_spec("momentum", 0.0, "as in Train"), int_spec("centered", 0, "as in Train")});
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
