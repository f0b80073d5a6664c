// SPDX-License-Identifier: Apache-2.0
#include "ops/indexing/places.h"

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/math/strided.h"
#include "ops/shape/copy.h"
#include "ops/words.h"

namespace arbalest {

IndexedPlaces::IndexedPlaces(const Node& node, const Shape& data, const Shape& indices) {
  static_assert(size_t(kMaxRank) == Strided::kMaxRank);
  const std::vector<int64_t> strides = memory_strides({DataType::Float32, data});
  const auto by_index = [&](size_t axis, int i) { extent[i] = data[axis], stride[i] = strides[axis]; };
  const auto in_group = [&](int64_t count, int64_t step) { group_extent[rank] = count, group_stride[rank++] = step; };
  tuples = !node.op->attribute_spec("axis");
  if (!tuples) {
    const size_t axis = axis_of(node, data.size());
    for (size_t i = 0; i < data.size(); ++i) {
      (i < axis ? outer : i == axis ? length : inner) *= indices[i];
      if (i != axis) in_group(indices[i], strides[i]);
    }
    by_index(axis, 0);
    per_batch = length;
  } else {
    int64_t batches = 1;
    const size_t batch = node.op->attribute_spec("batch_dims") ? size_t(int_attribute(node, "batch_dims")) : 0;
    depth = int(indices.back());
    for (int i = 0; i < depth; ++i) by_index(batch + size_t(i), i);
    for (size_t i = batch + size_t(depth); i < data.size(); ++i) inner *= data[i];
    in_group(inner, 1);
    for (size_t i = 0; i + 1 < indices.size(); ++i) (i < batch ? batches : per_batch) *= indices[i];
    length = batches * per_batch;
    if (batch > 0) batch_stride = strides[batch - 1];
  }
}

Reduction reduction_of(const Node& node) {
  const std::vector<std::string>& choices = node.op->attribute_spec("reduction")->choices;
  const auto found = std::find(choices.begin(), choices.end(), string_attribute(node, "reduction"));
  return Reduction(found - choices.begin());
}

IndexedPlaces places_of(const KernelRequest& request, IndexedKind kind) {
  const TensorType& data = kind == IndexedKind::Sum ? request.outputs[0] : request.inputs[0];
  return {request.node, data.shape, request.inputs[1].shape};
}

namespace {

void expect_indices(const InferContext& context) {
  const TensorType& indices = context.input(1);
  if (indices.dtype == DataType::Int32 || indices.dtype == DataType::Int64) return;
  context.fail(fmt::format("{} is {}; expected int32 or int64", input_name(context, 1), to_string(indices)));
}

// The indices of one instance, checked before anything is taken or put.
Indices checked_indices(const KernelContext& c, const Node& node, const IndexedPlaces& places, const TensorType& type) {
  const Indices indices{c.inputs[1], type.dtype == DataType::Int64};
  for (int64_t i = 0; i < type.elements(); ++i) {
    const int64_t extent = places.extent[i % places.depth];
    if (indices[i] >= -extent && indices[i] < extent) continue;
    throw RunError(fmt::format("node '{}' ({}): index {} of 'indices' is {}; expected {} to {}", node.name,
                               node.op->qualified_name(), i, indices[i], -extent, extent - 1));
  }
  return indices;
}

// f(place in `data`, element) for all elements, those of a group in their order.
template <typename F>
void for_each_place(const IndexedPlaces& places, const Indices& indices, const F& f) {
  parallel_for(places.groups(), places.length * 4, [&](int64_t begin, int64_t end) {
    for (int64_t j = 0; j < places.length; ++j) {
      for (int64_t group = begin; group < end; ++group) f(places.place(group, j, indices), places.element(group, j));
    }
  });
}

// run(context, places, indices), with the indices checked.
template <typename Run>
std::unique_ptr<Kernel> indexed_kernel(const KernelRequest& request, IndexedKind kind, Run run) {
  return make_kernel([places = places_of(request, kind), node = request.node, type = request.inputs[1],
                      run](const KernelContext& c) { run(c, places, checked_indices(c, node, places, type)); });
}

void copy_data(const KernelContext& c, int64_t bytes) {
  if (bytes > 0) std::memcpy(c.outputs[0], c.inputs[0], size_t(bytes));
}

std::unique_ptr<Kernel> take_cpu(const KernelRequest& request) {
  return with_word(request.inputs[0].dtype, [&](auto element) {
    using Word = decltype(element);
    const auto run = [](const KernelContext& c, const IndexedPlaces& places, const Indices& indices) {
      const Word* data = input<Word>(c, 0);
      Word* y = output<Word>(c, 0);
      parallel_for(places.elements(), 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          y[i] = data[places.place(places.group_of(i), places.position_of(i), indices)];
        }
      });
    };
    return indexed_kernel(request, IndexedKind::Take, run);
  });
}

// Without updates zeros are put.
std::unique_ptr<Kernel> put_cpu(const KernelRequest& request, bool zeros) {
  const int64_t bytes = request.outputs[0].bytes();
  return with_word(request.inputs[0].dtype, [&](auto element) {
    using Word = decltype(element);
    const auto run = [bytes, zeros](const KernelContext& c, const IndexedPlaces& places, const Indices& indices) {
      copy_data(c, bytes);
      const Word* updates = zeros ? nullptr : input<Word>(c, 2);
      Word* y = output<Word>(c, 0);
      for_each_place(places, indices, [=](int64_t place, int64_t i) { y[place] = updates ? updates[i] : Word(0); });
    };
    return indexed_kernel(request, zeros ? IndexedKind::Clear : IndexedKind::Put, run);
  });
}

std::unique_ptr<Kernel> reduce_cpu(const KernelRequest& request, Reduction reduction) {
  const int64_t bytes = request.outputs[0].bytes();
  return dispatch_element(request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [bytes, reduction](const KernelContext& c, const IndexedPlaces& places, const Indices& indices) {
      copy_data(c, bytes);
      const T* updates = input<T>(c, 2);
      T* y = output<T>(c, 0);
      for_each_place(places, indices, [=](int64_t place, int64_t i) {
        y[place] = narrow<T>(reduced(reduction, widen(y[place]), widen(updates[i])));
      });
    };
    return indexed_kernel(request, IndexedKind::Put, run);
  });
}

std::unique_ptr<Kernel> sum_cpu(const KernelRequest& request) {
  const int64_t elements = request.outputs[0].elements();
  return dispatch_floating(request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [elements](const KernelContext& c, const IndexedPlaces& places, const Indices& indices) {
      const T* dy = input<T>(c, 0);
      Wide<T>* dx = output<Wide<T>>(c, 0);
      std::fill_n(dx, elements, Wide<T>(0));
      for_each_place(places, indices, [=](int64_t place, int64_t i) { dx[place] += widen(dy[i]); });
    };
    return indexed_kernel(request, IndexedKind::Sum, run);
  });
}

std::unique_ptr<Kernel> indexed_cpu(const KernelRequest& request, IndexedKind kind) {
  switch (kind) {
    case IndexedKind::Take: return take_cpu(request);
    case IndexedKind::Sum: return sum_cpu(request);
    case IndexedKind::Clear: return put_cpu(request, true);
    case IndexedKind::Put: break;
  }
  const Reduction reduction = reduction_of(request.node);
  return reduction == Reduction::None ? put_cpu(request, false) : reduce_cpu(request, reduction);
}

}  // namespace

void check_element_indices(const InferContext& context) {
  const size_t axis = axis_of(context);
  expect_indices(context);
  const TensorType &data = context.input(0), &indices = context.input(1);
  bool fits = indices.shape.size() == data.shape.size();
  for (size_t i = 0; fits && i < data.shape.size(); ++i) fits = i == axis || indices.shape[i] <= data.shape[i];
  if (fits) return;
  context.fail(fmt::format("{} is {}; expected the rank of {}, {}, and but for axis {} no more than its extents",
                           input_name(context, 1), to_string(indices), input_name(context, 0), to_string(data), axis));
}

Shape shape_by_tuples(const InferContext& context, int64_t batch_dims) {
  check_rank(context);
  expect_indices(context);
  const Shape &data = context.input(0).shape, &indices = context.input(1).shape;
  const int64_t rank = int64_t(data.size());
  if (indices.empty() || batch_dims < 0 || batch_dims >= std::min(rank, int64_t(indices.size()))) {
    context.fail(fmt::format("{} is {} and {} {}; expected more axes of both than the {} of batches",
                             input_name(context, 0), to_string(context.input(0)), input_name(context, 1),
                             to_string(context.input(1)), batch_dims));
  }
  const int64_t depth = indices.back();
  if (depth < 1 || depth > rank - batch_dims) {
    context.fail(fmt::format("{} is {}; expected a last axis of 1 to {} for {}, {}", input_name(context, 1),
                             to_string(context.input(1)), rank - batch_dims, input_name(context, 0),
                             to_string(context.input(0))));
  }
  if (!std::equal(data.begin(), data.begin() + batch_dims, indices.begin())) {
    context.fail(fmt::format("{} is {}; expected the first {} extents of {}, {}", input_name(context, 1),
                             to_string(context.input(1)), batch_dims, input_name(context, 0),
                             to_string(context.input(0))));
  }
  Shape shape(indices.begin(), indices.end() - 1);
  shape.insert(shape.end(), data.begin() + batch_dims + depth, data.end());
  return shape;
}

void register_indexing_places(OpRegistry& registry) {
  add_gather_elements(registry);
  add_scatter(registry);
  for (const IndexedOperator& op : kIndexedOperators) {
    registry.find(op.name)->cpu = [kind = op.kind](const KernelRequest& request) { return indexed_cpu(request, kind); };
  }
}

}  // namespace arbalest
