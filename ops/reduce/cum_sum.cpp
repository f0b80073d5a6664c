// SPDX-License-Identifier: Apache-2.0

// CumSum: sums of the elements before each along an axis.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/math/strided.h"

namespace arbalest {
namespace {

void infer_cum_sum(InferContext& context) {
  const TensorType& x = number_input(context, 0);
  if (x.dtype == DataType::Uint8) {
    context.fail(fmt::format("{} is {}; expected float, double, bfloat16, int32 or int64", input_name(context, 0),
                             to_string(x)));
  }
  const int64_t rank = int64_t(x.shape.size()), axis = context.integer("axis");
  if (axis < -rank || axis >= rank) {
    context.fail(fmt::format("'axis' is {}; expected {} to {} for {}, {}", axis, -rank, rank - 1,
                             input_name(context, 0), to_string(x)));
  }
  flag_attribute(context.node(), "exclusive");
  flag_attribute(context.node(), "reverse");
  context.set_output(0, x);
}

// Each element is in the sums after it: the gradient sums from the other end.
void grad_cum_sum(GradContext& c) {
  const Node node = c.node();
  Attributes attributes = node.attributes;
  attributes.set("reverse", int64_t(!flag_attribute(node, "reverse")));
  c.add_input_gradient("CumSum", {}, std::move(attributes));
}

// Integers wrap around; floats are summed in double.
template <typename T>
std::unique_ptr<Kernel> cum_sum_kernel(const KernelRequest& request) {
  using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
  const AxisVectors v(request.inputs[0], int_attribute(request.node, "axis"));
  const bool exclusive = flag_attribute(request.node, "exclusive"), reverse = flag_attribute(request.node, "reverse");
  return make_kernel([=](const KernelContext& c) {
    const T* x = input<T>(c, 0);
    T* y = output<T>(c, 0);
    parallel_for(v.count, v.length * 2, [=, &v](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Sum sum = 0;
        for (int64_t k = 0; k < v.length; ++k) {
          const int64_t at = v.first(i) + (reverse ? v.length - 1 - k : k) * v.step;
          const Sum before = sum;
          sum += Sum(widen(x[at]));
          y[at] = narrow<T>(Wide<T>(exclusive ? before : sum));
        }
      }
    });
  });
}

std::unique_ptr<Kernel> cum_sum_cpu(const KernelRequest& request) {
  switch (request.inputs[0].dtype) {
    case DataType::Int32: return cum_sum_kernel<int32_t>(request);
    case DataType::Int64: return cum_sum_kernel<int64_t>(request);
    default:
      return dispatch_floating(request.inputs[0].dtype,
                               [&](auto element) { return cum_sum_kernel<decltype(element)>(request); });
  }
}

std::vector<Sample> cum_sum_samples() {
  struct Case {
    TensorType x;
    int64_t axis;
    bool exclusive = false, reverse = false;
  };
  const auto plain = [](Shape shape) { return TensorType{DataType::Float32, std::move(shape)}; };
  const auto image = [&](Shape shape) { return plain(std::move(shape)).in(Layout::ChannelsLast); };
  std::vector<Sample> samples;
  for (const Case& c :
       {Case{plain({7}), 0}, Case{plain({5, 70}), -1, true}, Case{plain({40, 33}), 0, false, true},
        Case{plain({2, 1, 3}), 1, true, true}, Case{plain({3, 1025}), 1}, Case{image({2, 37, 5, 4}), 1, true, true},
        Case{image({2, 3, 5, 4}), 2, false, true}, Case{plain({3, 0, 2}), 0}, Case{plain({3, 0, 2}), 1},
        Case{{DataType::Int32, {3, 40}}, 1, true}, Case{{DataType::Int64, {40, 3}}, 0, false, true}}) {
    const bool floating = is_floating(c.x.dtype);
    samples.push_back(
        {.name = fmt::format("{}{}, axis {}{}{}", to_string(c.x),
                             c.x.layout == Layout::ChannelsLast ? " channels-last" : "", c.axis,
                             c.exclusive ? ", exclusive" : "", c.reverse ? ", reverse" : ""),
         .inputs = {{.type = c.x, .low = floating ? -1.0 : -9.0, .high = floating ? 1.0 : 9.0}},
         .attributes = {{"axis", c.axis}, {"exclusive", int64_t(c.exclusive)}, {"reverse", int64_t(c.reverse)}},
         .tolerance = floating ? 1e-5 : 0});
  }
  return samples;
}

}  // namespace

void register_reduce_cum_sum(OpRegistry& registry) {
  registry.add(
      {.domain = "",
       .name = "CumSum",
       .doc = "for each element the sum of those before it along `axis` and its own",
       .inputs = {{.name = "x", .lowered = true}, {.name = "axis", .arity = OperandSpec::Optional, .constant = true}},
       .outputs = {{.name = "y", .lowered = true}},
       .attributes = {required_spec("axis", AttributeKind::Int, "negative counts from the end"),
                      int_spec("exclusive", 0, "1: without its own"),
                      int_spec("reverse", 0, "1: those after it instead")},
       .layout = std::nullopt,
       .infer = infer_cum_sum,
       .grad = grad_cum_sum,
       .cost = elementwise_cost(1),
       .samples = cum_sum_samples,
       .cpu = cum_sum_cpu});
}

}  // namespace arbalest
