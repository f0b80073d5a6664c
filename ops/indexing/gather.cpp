// SPDX-License-Identifier: Apache-2.0

// Gather: slices of a tensor by their index along an axis, as embeddings take them; and its gradient, which may leave
// out the slice of one index.

#include "ops/indexing/gather.h"

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

bool is_index(DataType type) {
  return type == DataType::Int32 || type == DataType::Int64;
}

void infer_gather(InferContext& context) {
  using In = IndexedInput;
  const TensorType &data = context.input(In::Data), &indices = context.input(In::Indices);
  const size_t axis = axis_of(context);
  if (!is_index(indices.dtype)) {
    context.fail(
        fmt::format("{} is {}; expected int32 or int64", input_name(context, In::Indices), to_string(indices)));
  }
  TensorType y{data.dtype, Shape(data.shape.begin(), data.shape.begin() + int64_t(axis))};
  y.shape.insert(y.shape.end(), indices.shape.begin(), indices.shape.end());
  y.shape.insert(y.shape.end(), data.shape.begin() + int64_t(axis) + 1, data.shape.end());
  if (const auto padding = ints_attribute(context.node(), "padding_index"); !padding.empty()) {
    const int64_t extent = data.shape[axis];
    if (padding.size() > 1 || padding[0] < 0 || padding[0] >= extent) {
      context.fail(fmt::format("attribute 'padding_index' is {}; expected one index, 0 to {}",
                               to_string(padding, '[', ']'), extent - 1));
    }
  }
  context.set_output(0, y);
}

void grad_gather(GradContext& c) {
  const Shape shape = c.type(c.input(0)).shape;
  c.add_input_gradient("arbalest.GatherGrad", {c.input(IndexedInput::Indices)},
                       {{"axis", int64_t(axis_of(c.node(), shape.size()))},
                        {"shape", shape},
                        {"padding_index", ints_attribute(c.node(), "padding_index")}});
}

void infer_gather_gradient(InferContext& context) {
  const TensorType& dy = floating_input(context, 0);
  context.set_output(0, {master_type(dy.dtype), ints_attribute(context.node(), "shape")});
}

// Places along the axis, checked before anything is read from them.
template <typename Index>
class Places {
 public:
  Places(const Node& node, const Gathering& g, const Index* indices) : extent_(g.extent), indices_(indices) {
    for (int64_t j = 0; j < g.count; ++j) {
      if (int64_t(indices[j]) >= -extent_ && int64_t(indices[j]) < extent_) continue;
      throw RunError(fmt::format("node '{}' ({}): index {} of 'indices' is {}; expected {} to {}", node.name,
                                 node.op->qualified_name(), j, int64_t(indices[j]), -extent_, extent_ - 1));
    }
  }
  int64_t operator[](int64_t j) const {
    return indices_[j] < 0 ? int64_t(indices_[j]) + extent_ : int64_t(indices_[j]);
  }

 private:
  int64_t extent_;
  const Index* indices_;
};

// function(Index{}) with Index the element type of the indices, input 1.
template <typename Function>
std::unique_ptr<Kernel> with_index(const KernelRequest& request, Function function) {
  return request.inputs[IndexedInput::Indices].dtype == DataType::Int32 ? function(int32_t{}) : function(int64_t{});
}

std::unique_ptr<Kernel> gather_cpu(const KernelRequest& request) {
  using In = IndexedInput;
  const TensorType& data = request.inputs[In::Data];
  const Gathering g(data, request.inputs[In::Indices], axis_of(request.node, data.shape.size()));
  const int64_t bytes = g.inner * int64_t(size_of(data.dtype));
  return with_index(request, [&](auto index) {
    using Index = decltype(index);
    return make_kernel([g, bytes, node = request.node](const KernelContext& c) {
      const Places<Index> places(node, g, input<Index>(c, In::Indices));
      const auto* from = input<std::byte>(c, In::Data);
      auto* to = output<std::byte>(c, 0);
      if (bytes == 0) return;
      parallel_for(g.outer * g.count, bytes / 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::memcpy(to + i * bytes, from + (i / g.count * g.extent + places[i % g.count]) * bytes, size_t(bytes));
        }
      });
    });
  });
}

std::unique_ptr<Kernel> gather_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const TensorType& dx = request.outputs[0];
  const Gathering g(dx, request.inputs[IndexedInput::Indices], axis_of(request.node, dx.shape.size()));
  const std::vector<int64_t> padding = ints_attribute(request.node, "padding_index");
  const int64_t left_out = padding.empty() ? -1 : padding[0];
  return with_index(request, [&](auto index) {
    using Index = decltype(index);
    return make_kernel([g, left_out, elements = dx.elements(), node = request.node](const KernelContext& c) {
      const Places<Index> places(node, g, input<Index>(c, IndexedInput::Indices));
      const T* dy = input<T>(c, 0);
      Wide<T>* to = output<Wide<T>>(c, 0);
      std::fill_n(to, elements, Wide<T>(0));
      for (int64_t i = 0; i < g.outer * g.count; ++i) {
        const int64_t place = places[i % g.count];
        if (place == left_out) continue;
        Wide<T>* slice = to + (i / g.count * g.extent + place) * g.inner;
        for (int64_t k = 0; k < g.inner; ++k) slice[k] += widen(dy[i * g.inner + k]);
      }
    });
  });
}

struct GatherCase {
  Shape data, indices;
  int64_t axis;
  DataType type = DataType::Float32, index = DataType::Int64;
};

std::vector<GatherCase> gather_cases() {
  return {{{5}, {}, 0},
          {{7, 8}, {4}, 0},
          {{7, 8}, {2, 3}, 0, DataType::Float32, DataType::Int32},
          {{3, 5}, {9}, -1},
          {{2, 6, 3}, {2, 2}, 1},
          {{2, 4, 3, 2}, {40}, 1},
          {{50, 12}, {300}, 0, DataType::Float32, DataType::Int32},
          {{4, 3}, {0}, 0}};
}

Sample::Input gather_indices(const GatherCase& c) {
  const int64_t extent = c.data[normalized_axis(c.axis, c.data.size())];
  return {.type = {c.index, c.indices}, .low = double(-extent), .high = double(extent - 1)};
}

std::string name_of_gather(const GatherCase& c) {
  return fmt::format("{} by {} {} along {}", to_string(TensorType{c.type, c.data}), to_string(c.indices),
                     arbalest::name_of(c.index), c.axis);
}

std::vector<Sample> gather_samples() {
  std::vector<Sample> samples;
  std::vector<GatherCase> all = gather_cases();
  all.push_back({{6}, {3}, 0, DataType::Int64});
  all.push_back({{3, 5}, {2}, 1, DataType::Bool});
  for (const GatherCase& c : all) {
    samples.push_back({.name = name_of_gather(c),
                       .inputs = {{.type = {c.type, c.data}, .low = 0, .high = 1}, gather_indices(c)},
                       .attributes = {{"axis", c.axis}},
                       .tolerance = 0});
  }
  return samples;
}

std::vector<Sample> gather_gradient_samples() {
  std::vector<Sample> samples;
  for (const GatherCase& c : gather_cases()) {
    const size_t axis = normalized_axis(c.axis, c.data.size());
    Shape y(c.data.begin(), c.data.begin() + int64_t(axis));
    y.insert(y.end(), c.indices.begin(), c.indices.end());
    y.insert(y.end(), c.data.begin() + int64_t(axis) + 1, c.data.end());
    samples.push_back({.name = name_of_gather(c),
                       .inputs = {{.type = {DataType::Float32, y}}, gather_indices(c)},
                       .attributes = {{"axis", c.axis}, {"shape", c.data}},
                       .tolerance = 1e-5});
  }
  samples.push_back(samples[2]);
  samples.back().name += ", one of them padding";
  samples.back().attributes.set("padding_index", std::vector<int64_t>{3});
  return samples;
}

}  // namespace

void register_indexing_gather(OpRegistry& registry) {
  const AttributeSpec axis = int_spec("axis", 0, "that the indices are along; negative counts from the end"),
                      padding =
                          ints_spec("padding_index", {},
                                    "an index whose slice gets no gradient, as PyTorch's padding_idx; none: all do");
  registry.add(
      {.domain = "",
       .name = "Gather",
       .doc = "the slices of data that `indices` names along `axis`; on a GPU one that is out of range gives NaN",
       .inputs = {{.name = "data", .lowered = true}, {.name = "indices"}},
       .outputs = {{.name = "output", .lowered = true}},
       .attributes = {axis, padding},
       .infer = infer_gather,
       .grad = grad_gather,
       .cost =
           [](const Graph& graph, const Node& node) {
             return Cost{0, 2.0 * double(output_type(graph, node, 0).bytes())};
           },
       .samples = gather_samples,
       .cpu = gather_cpu});
  registry.add({.domain = "arbalest",
                .name = "GatherGrad",
                .doc = "the gradient of Gather: for each slice the sum of dY wherever it was taken",
                .inputs = {{.name = "dY", .lowered = true}, {.name = "indices"}},
                .outputs = {{.name = "dX"}},
                .attributes = {axis, required_spec("shape", AttributeKind::Ints, "of dX"), padding},
                .internal = true,
                .infer = infer_gather_gradient,
                .cost = elementwise_cost(1),
                .samples = gather_gradient_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return gather_grad_cpu(r, t); })});
}

}  // namespace arbalest
