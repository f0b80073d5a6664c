// SPDX-License-Identifier: Apache-2.0

// LRN: local response normalisation over neighbouring channels, as AlexNet and the first GoogLeNet have it.

#include "ops/norm/lrn.h"

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/math/strided.h"
#include "ops/names.h"

namespace arbalest {

template <typename W>
ChannelWindows<W> channel_windows(const KernelRequest& request) {
  const TensorType& x = request.inputs[0];
  const int64_t size = int_attribute(request.node, "size");
  ChannelWindows<W> windows;
  windows.channels = x.shape[1];
  windows.step = memory_strides(x)[1];
  windows.before = (size - 1) / 2;
  windows.after = size - 1 - windows.before;
  windows.scale = W(float_attribute(request.node, "alpha") / double(size));
  windows.beta = W(float_attribute(request.node, "beta"));
  windows.bias = W(float_attribute(request.node, "bias"));
  return windows;
}
template ChannelWindows<float> channel_windows<float>(const KernelRequest& request);
template ChannelWindows<double> channel_windows<double>(const KernelRequest& request);

namespace {

void check_lrn(const InferContext& context, const TensorType& x) {
  if (x.shape.size() < 2)
    context.fail(fmt::format("{} is {}; expected (N, C, …)", input_name(context, 0), to_string(x)));
  int_attribute_from(context.node(), "size", 1);
}

void infer_lrn(InferContext& context) {
  const TensorType& x = floating_input(context, 0);
  check_lrn(context, x);
  context.set_output(0, x);
}

void infer_lrn_gradient(InferContext& context) {
  const TensorType& x = floating_input(context, GradByInput::dY);
  check_lrn(context, x);
  expect_input(context, GradByInput::X, x, "the type of 'dY'");
  context.set_output(0, x);
}

void grad_lrn(GradContext& c) {
  c.add_input_gradient("arbalest.LRNGrad", {c.input(0)}, c.node().attributes);
}

std::unique_ptr<Kernel> lrn_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const auto windows = channel_windows<Wide<T>>(request);
  const int64_t elements = request.outputs[0].elements();
  return make_kernel([=](const KernelContext& c) {
    const T* from = input<T>(c, 0);
    T* y = output<T>(c, 0);
    const auto x = [from](int64_t i) { return widen(from[i]); };
    parallel_for(elements, 32, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = narrow<T>(windows.normalized(i, x));
    });
  });
}

std::unique_ptr<Kernel> lrn_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  const auto windows = channel_windows<W>(request);
  const int64_t elements = request.outputs[0].elements();
  const auto run = [=](const KernelContext& c) {
    const T *gradient = input<T>(c, GradByInput::dY), *from = input<T>(c, GradByInput::X);
    T* dx = output<T>(c, 0);
    W* terms = static_cast<W*>(c.workspace);
    const auto dy = [gradient](int64_t i) { return widen(gradient[i]); };
    const auto x = [from](int64_t i) { return widen(from[i]); };
    parallel_for(elements, 32, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) terms[i] = windows.term(i, dy, x);
    });
    parallel_for(elements, 32, [=](int64_t begin, int64_t end) {
      const auto term = [terms](int64_t j) { return terms[j]; };
      for (int64_t i = begin; i < end; ++i) dx[i] = narrow<T>(windows.gradient(i, dy, x, term));
    });
  };
  return make_kernel(run, elements * int64_t(sizeof(W)));
}

std::vector<Sample> lrn_samples(size_t inputs) {
  struct Case {
    TensorType x;
    int64_t size;
    double alpha = 0.5, beta = 0.75, bias = 1;
  };
  const auto plain = [](Shape shape) { return TensorType{DataType::Float32, std::move(shape)}; };
  const auto image = [&](Shape shape) { return plain(std::move(shape)).in(Layout::ChannelsLast); };
  std::vector<Sample> samples;
  for (const Case& c :
       {Case{plain({2, 5, 3, 4}), 3}, Case{image({2, 7, 3, 2}), 5}, Case{plain({2, 6, 5}), 4, 2, 0.5, 2},
        Case{image({1, 3, 4, 5}), 9}, Case{plain({2, 1, 3, 4}), 5}, Case{plain({3, 6}), 1},
        Case{image({2, 64, 9, 7}), 5, 1e-4}, Case{plain({0, 3, 2, 2}), 3}}) {
    samples.push_back({.name = fmt::format("{}{}, size {}", to_string(c.x.shape),
                                           c.x.layout == Layout::ChannelsLast ? " channels-last" : "", c.size),
                       .inputs = std::vector<Sample::Input>(inputs, {.type = c.x, .low = -2, .high = 2}),
                       .attributes = {{"size", c.size}, {"alpha", c.alpha}, {"beta", c.beta}, {"bias", c.bias}}});
  }
  return samples;
}

}  // namespace

void register_norm_lrn(OpRegistry& registry) {
  const std::vector<AttributeSpec> attributes = {
      required_spec("size", AttributeKind::Int, "channels that are summed over"),
      float_spec("alpha", 1e-4, "the factor of the sum, over `size`"), float_spec("beta", 0.75, "the power"),
      float_spec("bias", 1, "added to that")};
  const auto cost = [](const Graph& graph, const Node& node) {
    const double flops = 2.0 * double(int_attribute(node, "size")) + 10;
    return Cost{flops * double(output_type(graph, node, 0).elements()), operand_bytes(graph, node)};
  };
  registry.add({.domain = "",
                .name = "LRN",
                .doc = "X · (bias + alpha / size · Σ X²)^−beta, the sum over `size` neighbouring channels",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = attributes,
                .layout = std::nullopt,
                .infer = infer_lrn,
                .grad = grad_lrn,
                .cost = cost,
                .samples = [] { return lrn_samples(1); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return lrn_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "LRNGrad",
                .doc = "the gradient of LRN",
                .inputs = {{.name = "dY", .lowered = true}, {.name = "X", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = attributes,
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_lrn_gradient,
                .cost = cost,
                .samples = [] { return lrn_samples(2); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return lrn_grad_cpu(r, t); })});
}

}  // namespace arbalest
