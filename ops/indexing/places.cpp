// SPDX-License-Identifier: Apache-2.0
#include "ops/indexing/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/indexing/gather.h"
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
  const TensorType& data = kind == IndexedKind::Sum ? request.outputs[0] : request.inputs[IndexedInput::Data];
  return {request.node, data.shape, request.inputs[IndexedInput::Indices].shape};
}

namespace {

void expect_indices(const InferContext& context) {
  const TensorType& indices = context.input(IndexedInput::Indices);
  if (indices.dtype == DataType::Int32 || indices.dtype == DataType::Int64) return;
  context.fail(
      fmt::format("{} is {}; expected int32 or int64", input_name(context, IndexedInput::Indices), to_string(indices)));
}

// The number of the first index that is out of range; `count` if none is.
template <typename Index>
int64_t first_wrong(const Index* indices, int64_t count, const IndexedPlaces& places) {
  for (int64_t i = 0, axis = 0; i < count; ++i) {
    if (indices[i] < -places.extent[axis] || indices[i] >= places.extent[axis]) return i;
    if (++axis == places.depth) axis = 0;
  }
  return count;
}

// The indices of one instance, checked before anything is taken or put.
Indices checked_indices(const KernelContext& c, const Node& node, const IndexedPlaces& places, const TensorType& type) {
  using In = IndexedInput;
  const Indices indices{c.inputs[In::Indices], type.dtype == DataType::Int64};
  const int64_t count = type.elements();
  const int64_t wrong = indices.wide ? first_wrong(input<int64_t>(c, In::Indices), count, places)
                                     : first_wrong(input<int32_t>(c, In::Indices), count, places);
  if (wrong == count) return indices;
  const int64_t extent = places.extent[wrong % places.depth];
  throw RunError(fmt::format("node '{}' ({}): index {} of 'indices' is {}; expected {} to {}", node.name,
                             node.op->qualified_name(), wrong, indices[wrong], -extent, extent - 1));
}

// Walks over elements with divisions for each row of inner ones, and none for each of these.
class PlacesWalk {
 public:
  explicit PlacesWalk(const IndexedPlaces& places) : places_(places) {
    if (places.groups() == 0) return;
    outer_.resize(size_t(places.outer));
    inner_.resize(size_t(places.inner));
    for (size_t o = 0; o < outer_.size(); ++o) outer_[o] = places.start(int64_t(o) * places.inner);
    for (size_t i = 0; i < inner_.size(); ++i) inner_[i] = places.start(int64_t(i));
  }
  const IndexedPlaces& places() const { return places_; }

  // f(place in `data`, element) for all elements, those of a group in their order.
  template <typename F>
  void for_each(const Indices& indices, const F& f) const {
    parallel_for(places_.groups(), places_.length * 4, [&](int64_t begin, int64_t end) {
      for (int64_t j = 0; j < places_.length; ++j) {
        for (int64_t group = begin; group < end;) {
          const int64_t outer = group / places_.inner, first = group - outer * places_.inner;
          const int64_t last = std::min(places_.inner, first + end - group);
          along_inner(outer, j, first, last, indices, f);
          group += last - first;
        }
      }
    });
  }

  // The same in any order.
  template <typename F>
  void for_each_alone(const Indices& indices, const F& f) const {
    if (outer_.empty()) return;
    parallel_for(places_.outer * places_.length, places_.inner * 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        along_inner(row / places_.length, row % places_.length, 0, places_.inner, indices, f);
      }
    });
  }

 private:
  template <typename F>
  void along_inner(int64_t outer, int64_t j, int64_t first, int64_t last, const Indices& indices, const F& f) const {
    const int64_t start = outer_[size_t(outer)], element = (outer * places_.length + j) * places_.inner;
    if (places_.tuples) {
      const int64_t step = start + places_.step(j, j * places_.depth, indices);
      for (int64_t i = first; i < last; ++i) f(step + inner_[size_t(i)], element + i);
      return;
    }
    const int64_t extent = places_.extent[0], stride = places_.stride[0];
    for (int64_t i = first; i < last; ++i) {
      const int64_t index = indices[element + i], counted = index < 0 ? index + extent : index;
      f(start + inner_[size_t(i)] + counted * stride, element + i);
    }
  }

  IndexedPlaces places_;
  std::vector<int64_t> outer_, inner_;  // offsets in `data` where groups begin, by the parts of their number, if any do
};

// run(context, walk, indices), with the indices checked.
template <typename Run>
std::unique_ptr<Kernel> indexed_kernel(const KernelRequest& request, IndexedKind kind, Run run) {
  return make_kernel([walk = PlacesWalk(places_of(request, kind)), node = request.node,
                      type = request.inputs[IndexedInput::Indices],
                      run](const KernelContext& c) { run(c, walk, checked_indices(c, node, walk.places(), type)); });
}

void copy_data(const KernelContext& c, int64_t bytes) {
  if (bytes > 0) std::memcpy(c.outputs[0], c.inputs[0], size_t(bytes));
}

std::unique_ptr<Kernel> take_cpu(const KernelRequest& request) {
  return with_word(request.inputs[0].dtype, [&](auto element) {
    using Word = decltype(element);
    const auto run = [](const KernelContext& c, const PlacesWalk& walk, const Indices& indices) {
      const Word* data = input<Word>(c, 0);
      Word* y = output<Word>(c, 0);
      walk.for_each_alone(indices, [=](int64_t place, int64_t i) { y[i] = data[place]; });
    };
    return indexed_kernel(request, IndexedKind::Take, run);
  });
}

// Without updates zeros are put.
std::unique_ptr<Kernel> put_cpu(const KernelRequest& request, bool zeros) {
  const int64_t bytes = request.outputs[0].bytes();
  return with_word(request.inputs[IndexedInput::Data].dtype, [&](auto element) {
    using Word = decltype(element);
    const auto run = [bytes, zeros](const KernelContext& c, const PlacesWalk& walk, const Indices& indices) {
      copy_data(c, bytes);
      const Word* updates = zeros ? nullptr : input<Word>(c, IndexedInput::Updates);
      Word* y = output<Word>(c, 0);
      walk.for_each(indices, [=](int64_t place, int64_t i) { y[place] = updates ? updates[i] : Word(0); });
    };
    return indexed_kernel(request, zeros ? IndexedKind::Clear : IndexedKind::Put, run);
  });
}

std::unique_ptr<Kernel> reduce_cpu(const KernelRequest& request, Reduction reduction) {
  const int64_t bytes = request.outputs[0].bytes();
  return dispatch_element(request.inputs[IndexedInput::Data].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [bytes, reduction](const KernelContext& c, const PlacesWalk& walk, const Indices& indices) {
      copy_data(c, bytes);
      const T* updates = input<T>(c, IndexedInput::Updates);
      T* y = output<T>(c, 0);
      walk.for_each(indices, [=](int64_t place, int64_t i) {
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
    const auto run = [elements](const KernelContext& c, const PlacesWalk& walk, const Indices& indices) {
      const T* dy = input<T>(c, 0);
      Wide<T>* dx = output<Wide<T>>(c, 0);
      std::fill_n(dx, elements, Wide<T>(0));
      walk.for_each(indices, [=](int64_t place, int64_t i) { dx[place] += widen(dy[i]); });
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
  using In = IndexedInput;
  const size_t axis = axis_of(context);
  expect_indices(context);
  const TensorType &data = context.input(In::Data), &indices = context.input(In::Indices);
  bool fits = indices.shape.size() == data.shape.size();
  for (size_t i = 0; fits && i < data.shape.size(); ++i) fits = i == axis || indices.shape[i] <= data.shape[i];
  if (fits) return;
  context.fail(fmt::format("{} is {}; expected the rank of {}, {}, and but for axis {} no more than its extents",
                           input_name(context, In::Indices), to_string(indices), input_name(context, In::Data),
                           to_string(data), axis));
}

Shape shape_by_tuples(const InferContext& context, int64_t batch_dims) {
  using In = IndexedInput;
  check_rank(context);
  expect_indices(context);
  const Shape &data = context.input(In::Data).shape, &indices = context.input(In::Indices).shape;
  const int64_t rank = int64_t(data.size());
  if (indices.empty() || batch_dims < 0 || batch_dims >= std::min(rank, int64_t(indices.size()))) {
    context.fail(fmt::format("{} is {} and {} {}; expected more axes of both than the {} of batches",
                             input_name(context, In::Data), to_string(context.input(In::Data)),
                             input_name(context, In::Indices), to_string(context.input(In::Indices)), batch_dims));
  }
  const int64_t depth = indices.back();
  if (depth < 1 || depth > rank - batch_dims) {
    context.fail(fmt::format("{} is {}; expected a last axis of 1 to {} for {}, {}", input_name(context, In::Indices),
                             to_string(context.input(In::Indices)), rank - batch_dims, input_name(context, In::Data),
                             to_string(context.input(In::Data))));
  }
  if (!std::equal(data.begin(), data.begin() + batch_dims, indices.begin())) {
    context.fail(fmt::format("{} is {}; expected the first {} extents of {}, {}", input_name(context, In::Indices),
                             to_string(context.input(In::Indices)), batch_dims, input_name(context, In::Data),
                             to_string(context.input(In::Data))));
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
