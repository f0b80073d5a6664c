// ClipFactor: what gradients are multiplied by so that their norm over all parameters stays within a bound.

#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

constexpr int64_t kBlock = 4096;  // elements whose squares are added up one by one; the same for any number of threads

void infer_clip(InferContext& context) {
  const TensorType& gradients = floating_input(context, 0, {1});
  expect_input(context, 0, {master_type(gradients.dtype), gradients.shape}, "since norms are in full precision");
  const double norm = float_attribute(context.node(), "norm");
  if (!(norm > 0 || (norm == 0 && flag_attribute(context.node(), "skip")))) {
    context.fail("attribute 'norm' is not above 0");
  }
  context.set_output(0, {gradients.dtype, {1}});
}

template <typename T>
std::unique_ptr<Kernel> clip_kernel(const KernelRequest& request) {
  const int64_t count = request.inputs[0].elements(), blocks = (count + kBlock - 1) / kBlock;
  const double bound = float_attribute(request.node, "norm");
  const T otherwise = flag_attribute(request.node, "skip") ? T(-1) : T(1);  // where the norm is not finite
  auto run = [=](const KernelContext& context) {
    if (context.scalars->update == 0) return;
    const T* gradients = input<T>(context, 0);
    auto* sums = static_cast<double*>(context.workspace);
    parallel_for(blocks, kBlock, [=](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        double sum = 0;
        for (int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i) {
          sum += double(gradients[i]) * double(gradients[i]);
        }
        sums[block] = sum;
      }
    });
    double sum = 0;
    for (int64_t block = 0; block < blocks; ++block) sum += sums[block];
    const double norm = std::sqrt(sum);
    T& factor = *output<T>(context, 0);
    factor = bound > 0 && norm > bound ? T(bound / norm) : T(1);
    if (!std::isfinite(norm)) factor = otherwise;
  };
  return make_kernel(run, blocks * int64_t(sizeof(double)));
}

std::unique_ptr<Kernel> clip_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? clip_kernel<double>(request) : clip_kernel<float>(request);
}

std::vector<Sample> samples() {
  const auto sample = [](std::string name, int64_t count, double norm) {
    return Sample{.name = std::move(name),
                  .inputs = {{{DataType::Float32, {count}}}},
                  .attributes = {{"norm", norm}},
                  .tolerance = 1e-6};
  };
  Sample huge = sample("squares beyond single precision", 1003, 1.0);
  huge.inputs[0].low = 1e30;
  huge.inputs[0].high = 1e31;
  Sample skipped = sample("a norm that is not finite", 1003, 1.0), unbound = sample("no bound", 1003, 0.0);
  skipped.inputs[0].low = skipped.inputs[0].high = std::numeric_limits<double>::infinity();
  for (Sample* each : {&skipped, &unbound}) each->attributes.set("skip", int64_t{1});
  return {skipped,
          unbound,
          sample("one element", 1, 1e-3),
          sample("within the bound", 1001, 1e3),
          sample("above the bound", 1001, 0.5),
          sample("aligned", 4096, 0.1),
          sample("a large model", 1000003, 10),
          huge};
}

}  // namespace

void register_optim_clip(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "ClipFactor",
       .doc = "the bound over the norm of all gradients where that is greater, else 1; where it is not finite 1, or, "
              "with skip, -1, which stands for no update",
       .inputs = {{.name = "gradients"}},
       .outputs = {{.name = "factor"}},
       .attributes = {required_spec("norm", AttributeKind::Float, "the bound; 0, with skip: none"),
                      int_spec("skip", 0, "1: there is no update where the norm is not finite")},
       .internal = true,
       .infer = infer_clip,
       .cost =
           [](const Graph& graph, const Node& node) {
             return Cost{2 * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
           },
       .samples = samples,
       .cpu = clip_cpu});
}

}  // namespace arbalest
