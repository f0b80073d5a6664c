// SPDX-License-Identifier: Apache-2.0

// ChannelSum: the gradient of a bias, added to each channel (axis 1). ReluGradSums: the same if Relu follows the
// bias, together with Relu's own gradient.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/fused/decomposed.h"
#include "ops/names.h"
#include "ops/relu.h"

namespace arbalest {
namespace {

// Rows are summed in parts of fixed size, so that the result does not depend on the number of threads.
constexpr int64_t kRowsPerPart = 256;

int64_t sum_parts(const Rows& size) {
  return (size.rows + kRowsPerPart - 1) / kRowsPerPart;
}

// add_row(first, to) adds the row whose first element is at `first` to the sums `to`.
template <typename W, typename AddRow>
void sum_channels(const Rows& size, double scale, const AddRow& add_row, W* sum, W* partial) {
  const int64_t channels = size.channels, parts = sum_parts(size);
  parallel_for(parts, kRowsPerPart * channels, [=](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      W* to = partial + part * channels;
      std::fill(to, to + channels, W(0));
      const int64_t last = std::min(size.rows, (part + 1) * kRowsPerPart);
      for (int64_t row = part * kRowsPerPart; row < last; ++row) {
        add_row(row * channels, to);
      }
    }
  });
  for (int64_t c = 0; c < channels; ++c) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) total += partial[part * channels + c];
    sum[c] = W(scale * total);
  }
}

std::unique_ptr<Kernel> channel_sum_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const Rows size = rows_of(request.inputs[0]);
  const double scale = float_attribute(request.node, "scale");
  return make_kernel(
      [size, scale](const KernelContext& context) {
        const T* x = input<T>(context, 0);
        const auto add_row = [=, &size](int64_t first, Wide<T>* to) {
          for (int64_t c = 0; c < size.channels; ++c) to[c] += widen(x[first + c]);
        };
        sum_channels(size, scale, add_row, output<Wide<T>>(context, 0), static_cast<Wide<T>*>(context.workspace));
      },
      sum_parts(size) * size.channels * int64_t(sizeof(Wide<T>)));
}

std::unique_ptr<Kernel> relu_grad_sums_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = GradByOutput;
  const Rows size = rows_of(request.inputs[In::dY]);
  return make_kernel(
      [size](const KernelContext& context) {
        const T *dy = input<T>(context, In::dY), *y = input<T>(context, In::Y);
        T* dx = output<T>(context, ReluGradSumsOutput::dX);
        const auto add_row = [dy, y, dx, channels = size.channels](int64_t first, Wide<T>* to) {
          const T *gradient = dy + first, *value = y + first;
          T* passed = dx + first;
          ARBALEST_INDEPENDENT
          for (int64_t c = 0; c < channels; ++c) {
            const Wide<T> whole = widen(gradient[c]), kept = widen(value[c]) > 0 ? whole : 0;
            passed[c] = narrow<T>(kept);
            to[c] += kept;
          }
        };
        sum_channels(size, 1, add_row, output<Wide<T>>(context, ReluGradSumsOutput::Sums),
                     static_cast<Wide<T>*>(context.workspace));
      },
      sum_parts(size) * size.channels * int64_t(sizeof(Wide<T>)));
}

TensorType sums_type(const InferContext& context, const TensorType& x) {
  const int64_t rank = int_attribute(context.node(), "rank");
  if (rank != 1 && rank != 2) context.fail(fmt::format("attribute 'rank' is {}; expected 1 or 2", rank));
  return {master_type(x.dtype), rank == 1 ? Shape{x.shape[1]} : Shape{1, x.shape[1]}};
}

void infer_channel_sum(InferContext& context) {
  context.set_output(0, sums_type(context, floating_input(context, 0, {2, 3, 4, 5})));
}

void infer_relu_grad_sums(InferContext& context) {
  const TensorType dy = floating_input(context, GradByOutput::dY, {2, 3, 4, 5});
  expect_input(context, GradByOutput::Y, dy, "the type of 'dY'");
  context.set_output(ReluGradSumsOutput::dX, dy);
  context.set_output(ReluGradSumsOutput::Sums, sums_type(context, dy));
}

const std::vector<Shape>& channel_sum_shapes() {
  static const std::vector<Shape> shapes = {{1, 1},    {64, 10},        {1000, 3},        {1, 5, 1, 1}, {3, 13, 5, 7},
                                            {2, 6, 9}, {2, 3, 4, 2, 5}, {32, 16, 24, 24}, {1200, 196},  {32, 20, 7, 7}};
  return shapes;
}

std::vector<Sample> channel_sum_samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : channel_sum_shapes()) {
    samples.push_back({.name = to_string(shape), .inputs = {{{DataType::Float32, shape}}}, .tolerance = 1e-5});
  }
  samples.push_back({.name = "large mean", .inputs = {{{DataType::Float32, {16, 8, 16, 16}}, 99, 101}}});
  samples.push_back({.name = "scaled, rank 2",
                     .inputs = {{{DataType::Float32, {9, 7}}}},
                     .attributes = {{"scale", 0.5}, {"rank", int64_t{2}}}});
  return samples;
}

std::vector<Sample> relu_grad_sums_samples() {
  std::vector<Sample> samples;
  std::vector<Shape> shapes = channel_sum_shapes();
  shapes.push_back({9, 500});          // one chunk of rows, and slices of channels
  shapes.push_back({15, 64, 96, 96});  // of more than 16 MiB, which GPUs cut into chunks otherwise
  for (const Shape& shape : shapes) {
    samples.push_back({.name = to_string(shape),
                       .inputs = {{{DataType::Float32, shape}}, {{DataType::Float32, shape}}},
                       .output_count = 2,
                       .tolerance = 1e-5});
  }
  samples.push_back({.name = "rank 2",
                     .inputs = {{{DataType::Float32, {9, 7}}}, {{DataType::Float32, {9, 7}}}},
                     .output_count = 2,
                     .attributes = {{"rank", int64_t{2}}}});
  return samples;
}

AttributeSpec rank_spec() {
  return int_spec("rank", 1, "1: the sums are (C); 2: they are (1, C)");
}

}  // namespace

void register_math_channel_sum(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "ChannelSum",
                .doc = "the sum over all axes but the channels (axis 1), times `scale`",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "S"}},
                .attributes = {float_spec("scale", 1.0, "factor of the sum"), rank_spec()},
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_channel_sum,
                .cost =
                    [](const Graph& graph, const Node& node) {
                      return Cost{double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
                    },
                .samples = channel_sum_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return channel_sum_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "ReluGradSums",
                .doc = "the gradient of Relu, and its sums over all axes but the channels (axis 1)",
                .inputs = {{.name = "dY", .lowered = true}, {.name = "Y", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}, {.name = "S"}},
                .attributes = {rank_spec()},
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_relu_grad_sums,
                .decompose =
                    [](ExpandContext& c) {
                      const ValueId passed =
                          add_one(c, "arbalest.ReluGrad", {c.input(GradByOutput::dY), c.input(GradByOutput::Y)});
                      c.replace_output(0, passed);
                      c.replace_output(ReluGradSumsOutput::Sums,
                                       add_one(c, "arbalest.ChannelSum", {passed}, c.node().attributes));
                    },
                .cost =
                    [](const Graph& graph, const Node& node) {
                      return Cost{2 * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
                    },
                .samples = relu_grad_sums_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return relu_grad_sums_cpu(r, t); })});
}

}  // namespace arbalest
