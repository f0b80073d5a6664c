// SPDX-License-Identifier: Apache-2.0

// ArgMax and ArgMin: where along an axis the greatest or the least element is.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/reduce/reduce.h"
#include "ops/reduce/sum_axes.h"

namespace arbalest {
namespace {

ReducedAxes axes_of(const Node& node, size_t rank) {
  std::vector<bool> reduced(rank, false);
  reduced[normalized_axis(int_attribute(node, "axis"), rank)] = true;
  return {reduced, flag_attribute(node, "keepdims")};
}

void infer_arg(InferContext& context) {
  const TensorType& x = context.input(0);
  const int64_t rank = int64_t(x.shape.size()), axis = int_attribute(context.node(), "axis");
  flag_attribute(context.node(), "select_last_index");
  if (axis < -rank || axis >= rank || x.shape.size() > Strided::kMaxRank) {
    context.fail(fmt::format("attribute 'axis' is {} and {} is {}; expected {} to {}, and a rank of 1 to {}", axis,
                             input_name(context, 0), to_string(x), -rank, rank - 1, Strided::kMaxRank));
  }
  if (x.shape[normalized_axis(axis, size_t(rank))] == 0) {
    context.fail(
        fmt::format("{} is {}; expected an element along axis {}", input_name(context, 0), to_string(x), axis));
  }
  TensorType y = axes_of(context.node(), x.shape.size()).result(x);
  y.dtype = DataType::Int64;
  context.set_output(0, y);
}

// A NaN is beyond every number.
template <bool kGreatest, typename T>
bool beyond(T a, T b) {
  return (kGreatest ? a > b : a < b) || (a != a && b == b);
}

template <bool kGreatest, typename T>
std::unique_ptr<Kernel> arg_kernel(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const SumAxes axes(reducing_walk(axes_of(request.node, x.shape.size()), x, y));
  const bool last = flag_attribute(request.node, "select_last_index");
  return make_kernel([axes, last](const KernelContext& c) {
    const T* x = input<T>(c, 0);
    int64_t* y = output<int64_t>(c, 0);
    parallel_for(axes.kept.count * axes.inner, axes.reduced.count, [=, &axes](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t kept = i / axes.inner, inner = i % axes.inner;
        const T* from = x + axes.kept.offset(kept, 0) + inner;
        const auto at = [&](int64_t r) {
          if constexpr (std::is_integral_v<T>) {
            return from[axes.reduced.offset(r, 0)];
          } else {
            return widen(from[axes.reduced.offset(r, 0)]);
          }
        };
        int64_t best = 0;
        for (int64_t r = 1; r < axes.reduced.count; ++r) {
          if (last ? !beyond<kGreatest>(at(best), at(r)) : beyond<kGreatest>(at(r), at(best))) best = r;
        }
        y[axes.kept.offset(kept, 1) + inner * axes.inner_stride] = best;
      }
    });
  });
}

template <bool kGreatest>
std::unique_ptr<Kernel> arg_cpu(const KernelRequest& request) {
  switch (request.inputs[0].dtype) {
    case DataType::Int32: return arg_kernel<kGreatest, int32_t>(request);
    case DataType::Int64: return arg_kernel<kGreatest, int64_t>(request);
    case DataType::Bool:
    case DataType::Uint8: return arg_kernel<kGreatest, uint8_t>(request);
    default:
      return dispatch_floating(request.inputs[0].dtype,
                               [&](auto element) { return arg_kernel<kGreatest, decltype(element)>(request); });
  }
}

std::vector<Sample> arg_max_samples() {
  struct Case {
    TensorType x;
    int64_t axis;
    bool keep, last;
  };
  const auto plain = [](Shape shape) { return TensorType{DataType::Float32, std::move(shape)}; };
  const auto image = [&](Shape shape) { return plain(std::move(shape)).in(Layout::ChannelsLast); };
  std::vector<Sample> samples;
  for (const Case& c : {Case{plain({7}), 0, false, false}, Case{plain({5, 70}), -1, true, false},
                        Case{plain({40, 33}), 0, false, true}, Case{plain({2, 1, 3}), 1, false, false},
                        Case{image({2, 21, 5, 4}), 1, true, false}, Case{image({2, 9, 5, 4}), 1, false, true},
                        Case{image({2, 3, 5, 4}), 2, false, false}, Case{plain({3, 0, 2}), 0, true, false}}) {
    // Whole numbers, so that some are equal; none is 0 or -0.
    for (const DataType type : {DataType::Float32, DataType::Int32}) {
      Sample::Input x{.type = c.x, .low = 1, .high = 4, .differentiable = false};
      x.type.dtype = type;
      samples.push_back(
          {.name = fmt::format("{} of {}, axis {}{}{}", to_string(c.x.shape), name_of(type), c.axis,
                               c.keep ? "" : ", left out", c.last ? ", last" : ""),
           .inputs = {x},
           .attributes = {{"axis", c.axis}, {"keepdims", int64_t(c.keep)}, {"select_last_index", int64_t(c.last)}},
           .tolerance = 0});
    }
  }
  samples.push_back({.name = "equal ones",
                     .inputs = {{.type = plain({4, 40}), .low = 2, .high = 2}},
                     .attributes = {{"axis", int64_t{1}}},
                     .tolerance = 0});
  samples.push_back({.name = "the last of equal ones",
                     .inputs = {{.type = plain({40, 9}), .low = 2, .high = 2}},
                     .attributes = {{"axis", int64_t{0}}, {"select_last_index", int64_t{1}}},
                     .tolerance = 0});
  return samples;
}

Op arg_operator(std::string name, std::string doc, KernelFactory cpu) {
  return {.domain = "",
          .name = std::move(name),
          .doc = std::move(doc),
          .inputs = {{.name = "data", .lowered = true}},
          .outputs = {{.name = "reduced"}},
          .attributes = {int_spec("axis", 0, "negative counts from the end"),
                         int_spec("keepdims", 1, "1: the axis stays, with one element"),
                         int_spec("select_last_index", 0, "1: the last of equal ones, else the first")},
          .layout = std::nullopt,
          .infer = infer_arg,
          .cost =
              [](const Graph& graph, const Node& node) {
                return Cost{double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
              },
          .samples = arg_max_samples,
          .cpu = std::move(cpu)};
}

}  // namespace

void register_reduce_arg_max(OpRegistry& registry) {
  registry.add(arg_operator("ArgMax", "the index of the greatest element along `axis`", arg_cpu<true>));
  registry.add(arg_operator("ArgMin", "the index of the least element along `axis`", arg_cpu<false>));
}

}  // namespace arbalest
