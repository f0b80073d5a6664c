// SPDX-License-Identifier: Apache-2.0

// Softmax and LogSoftmax along an axis, and their gradients. With a loss, SoftmaxCrossEntropy is one operator for both.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/math/float_functions.h"
#include "ops/math/strided.h"
#include "ops/names.h"

namespace arbalest {
namespace {

// Before version 13 the sums were over all axes from `axis` on, which was 1 unless given.
void check_version(const InferContext& context, int64_t rank, int64_t axis) {
  if (onnx_version(context.graph()) >= 13) return;
  const int64_t first = context.node().attributes.find("axis") ? axis : 1;
  if (first == rank - 1 || first == -1) return;
  context.fail(fmt::format(
      "attribute 'axis' is {} and input 'X' {}: before ONNX's opset 13 the sums are over all axes from there "
      "on; expected the last axis, or a file of opset 13",
      first, to_string(context.input(0))));
}

void infer_softmax(InferContext& context) {
  const TensorType& x = floating_input(context, 0);
  const int64_t rank = int64_t(x.shape.size()), axis = int_attribute(context.node(), "axis");
  if (axis < -rank || axis >= rank) {
    context.fail(fmt::format("attribute 'axis' is {}; expected {} to {} for input 'X', {}", axis, -rank, rank - 1,
                             to_string(x)));
  }
  check_version(context, rank, axis);
  context.set_output(0, x);
}

void infer_softmax_grad(InferContext& context) {
  using In = GradByOutput;
  expect_input(context, In::Y, floating_input(context, In::dY), "the type of 'dY'");
  context.set_output(0, context.input(In::dY));
}

constexpr int64_t kPart = 128;  // exponentials that are summed together

// f(first element) for each of the vectors along the axis.
template <typename F>
void for_each_vector(const AxisVectors& vectors, const F& f) {
  parallel_for(vectors.count, vectors.length * 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(vectors.first(i));
  });
}

AxisVectors vectors_of(const KernelRequest& request) {
  return {request.inputs[0], int_attribute(request.node, "axis")};
}

// Calls run(step) for the distance between neighbours of a vector, which the compiler knows if it is 1.
template <typename F>
void with_step(int64_t step, const F& run) {
  if (step == 1) return run(std::integral_constant<int64_t, 1>());
  run(step);
}

template <bool kLogarithm>
std::unique_ptr<Kernel> softmax_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  return make_kernel([v = vectors_of(request)](const KernelContext& context) {
    const T* x = input<T>(context, 0);
    T* y = output<T>(context, 0);
    with_step(v.step, [=](auto step) {
      for_each_vector(v, [=](int64_t first) {
        const W largest = combine_in_lanes(
            v.length, widen(x[first]), [](W a, W b) { return a < b ? b : a; },
            [=](int64_t k) { return widen(x[first + k * step]); });
        constexpr bool kKeeps = !kLogarithm && std::is_same_v<T, W>;  // exponentials, in y
        W part[kPart], sum = 0;
        for (int64_t begin = 0; begin < v.length; begin += kPart) {
          const int64_t count = std::min(kPart, v.length - begin), at = first + begin * step;
          for (int64_t k = 0; k < count; ++k) part[k] = elementwise::exp(widen(x[at + k * step]) - largest);
          sum += sum_in_lanes<W>(count, [&part](int64_t k) { return part[k]; });
          if constexpr (kKeeps) {
            for (int64_t k = 0; k < count; ++k) y[at + k * step] = part[k];
          }
        }
        const W log_of_sum = std::log(sum);
        ARBALEST_INDEPENDENT
        for (int64_t k = 0; k < v.length; ++k) {
          const int64_t i = first + k * step;
          const W shifted = kKeeps ? W(0) : widen(x[i]) - largest;
          const W exponential = kKeeps ? widen(y[i]) : elementwise::exp(shifted);
          y[i] = narrow<T>(kLogarithm ? shifted - log_of_sum : exponential / sum);
        }
      });
    });
  });
}

// The softmax of −∞ alone is NaN. Masked attention puts 0 in its place, and nothing flows back.
template <typename W>
W share_of(W y) {
  return std::isnan(y) ? W(0) : y;
}

template <bool kLogarithm>
std::unique_ptr<Kernel> softmax_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  return make_kernel([v = vectors_of(request)](const KernelContext& context) {
    const T *dy = input<T>(context, GradByOutput::dY), *y = input<T>(context, GradByOutput::Y);
    T* dx = output<T>(context, 0);
    with_step(v.step, [=](auto step) {
      for_each_vector(v, [=](int64_t first) {
        const W dot = sum_in_lanes<W>(v.length, [=](int64_t k) {
          const int64_t i = first + k * step;
          return kLogarithm ? widen(dy[i]) : widen(dy[i]) * share_of(widen(y[i]));
        });
        ARBALEST_INDEPENDENT
        for (int64_t k = 0; k < v.length; ++k) {
          const int64_t i = first + k * step;
          const W above = widen(dy[i]), value = widen(y[i]);
          dx[i] = narrow<T>(kLogarithm ? above - elementwise::exp(value) * dot : share_of(value) * (above - dot));
        }
      });
    });
  });
}

std::vector<Sample> softmax_samples(size_t inputs) {
  struct Case {
    Shape shape;
    int64_t axis;
    Layout layout = Layout::RowMajor;
  };
  std::vector<Sample> samples;
  for (const Case& c : {Case{{1}, 0},
                        {{7}, -1},
                        {{3, 5}, -1},
                        {{4, 6}, 0},
                        {{2, 3, 5, 4}, 1},
                        {{3, 2, 70}, 1},
                        {{2, 3000, 20}, 1},
                        {{2, 3, 40, 33}, -1},
                        {{64, 1000}, 1},
                        {{5, 3000}, 1},
                        {{3, 4999}, 1},
                        // A few vectors side by side.
                        {{40, 49, 2}, 1},
                        {{11, 10, 5}, 1},
                        {{3, 196, 31}, 1},
                        {{2, 1000, 5}, 1},
                        {{9, 6, 12, 197}, -1, Layout::ChannelsLast},
                        {{2, 4, 7, 196}, -1, Layout::ChannelsLast},
                        {{2, 12, 1000, 3}, 2, Layout::ChannelsLast}}) {
    const bool turned = c.layout == Layout::ChannelsLast;
    const TensorType type = TensorType{DataType::Float32, c.shape}.in(c.layout);
    Sample sample{.name = fmt::format("{}, axis {}{}", to_string(c.shape), c.axis, turned ? ", channels-last" : ""),
                  .inputs = std::vector<Sample::Input>(inputs, {type, -4, 4}),
                  .attributes = {{"axis", c.axis}},
                  .tolerance = 1e-5};
    samples.push_back(std::move(sample));
  }
  return samples;
}

template <bool kLogarithm>
void add_softmax(OpRegistry& registry, const std::string& name, std::string doc, std::string gradient_doc) {
  const AttributeSpec axis = int_spec("axis", -1, "the axis of the sums; negative counts from the end");
  registry.add({.domain = "",
                .name = name,
                .doc = std::move(doc),
                .inputs = {{.name = "input", .lowered = true}},
                .outputs = {{.name = "output", .lowered = true}},
                .attributes = {axis},
                .layout = std::nullopt,
                .infer = infer_softmax,
                .grad = [gradient = "arbalest." + name + "Grad"](
                            GradContext& c) { c.add_input_gradient(gradient, {c.output(0)}, c.node().attributes); },
                .cost = elementwise_cost(5),
                .samples = [] { return softmax_samples(1); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return softmax_cpu<kLogarithm>(r, t); }),
                .took_axes_as_one = true});
  registry.add(
      {.domain = "arbalest",
       .name = name + "Grad",
       .doc = std::move(gradient_doc),
       .inputs = {{.name = "dY", .lowered = true}, {.name = "Y", .lowered = true}},
       .outputs = {{.name = "dX", .lowered = true}},
       .attributes = {axis},
       .internal = true,
       .layout = std::nullopt,
       .infer = infer_softmax_grad,
       .cost = elementwise_cost(4),
       .samples = [] { return softmax_samples(2); },
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return softmax_grad_cpu<kLogarithm>(r, t); })});
}

}  // namespace

void register_math_softmax(OpRegistry& registry) {
  add_softmax<false>(registry, "Softmax", "exp(X) divided by its sum along `axis`",
                     "Y · (dY − the sum of dY · Y along `axis`), and 0 where Y is NaN");
  add_softmax<true>(registry, "LogSoftmax", "X less the logarithm of the sum of exp(X) along `axis`",
                    "dY − exp(Y) · the sum of dY along `axis`");
}

}  // namespace arbalest
