// Cast between floating types; the precision pass inserts it.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_cast(InferContext& context) {
  TensorType type = floating_input(context, 0);
  const std::string to = string_attribute(context.node(), "to");
  if (to == "float") {
    type.dtype = DataType::Float32;
  } else if (to == "bfloat16") {
    type.dtype = DataType::Bfloat16;
  } else {
    context.fail(fmt::format("attribute 'to' is \"{}\"; expected \"float\" or \"bfloat16\"", to));
  }
  context.set_output(0, type);
}

template <typename From, typename To>
std::unique_ptr<Kernel> cast_kernel(int64_t count) {
  return make_kernel([count](const KernelContext& context) {
    const From* x = input<From>(context, 0);
    To* y = output<To>(context, 0);
    parallel_for(count, 1, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = narrow<To>(static_cast<Wide<To>>(widen(x[i])));
    });
  });
}

std::unique_ptr<Kernel> cast_cpu(const KernelRequest& request, auto element) {
  using From = decltype(element);
  const int64_t count = request.outputs[0].elements();
  return dispatch_floating(request.outputs[0].dtype, [&](auto to) { return cast_kernel<From, decltype(to)>(count); });
}

std::vector<Sample> samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{1}, Shape{3, 5}, Shape{2, 7, 5, 3}, Shape{4, 32, 16, 16}}) {
    samples.push_back({.name = to_string(shape) + " to bfloat16",
                       .inputs = {{{DataType::Float32, shape}}},
                       .attributes = {{"to", "bfloat16"}},
                       .tolerance = 4e-3});
    samples.push_back({.name = to_string(shape) + " to float",
                       .inputs = {{{DataType::Bfloat16, shape}}},
                       .attributes = {{"to", "float"}},
                       .tolerance = 0});
  }
  return samples;
}

}  // namespace

void register_math_cast(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Cast",
                .doc = "X as another floating type, rounded to nearest even",
                .inputs = {{.name = "X"}},
                .outputs = {{.name = "Y"}},
                .attributes = {required_spec("to", AttributeKind::String, "float or bfloat16")},
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_cast,
                .cost = elementwise_cost(0),
                .samples = samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return cast_cpu(r, t); })});
}

}  // namespace arbalest
