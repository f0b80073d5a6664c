// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of GatherElements, GatherND, ScatterElements, ScatterND and their gradients. For an index that is out of
// range, an element with all bits set, a NaN, is taken, and nothing is put.
//
// Updates of a group may meet in one place. If their order matters, one thread handles a whole group, which is slow if
// groups are few and long. The order does not matter if one of several is put, or if floats are added and need not give
// the same bits each time.

#include "ops/indexing/places.h"

#include "ops/cuda/elements.cuh"
#include "ops/indexing/gather.h"
#include "ops/words.h"

namespace arbalest {

using namespace cuda;

namespace {

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    take_kernel(IndexedPlaces places, Indices indices, const Word* data, Word* y) {
  for (int64_t i = thread_index(); i < places.elements(); i += thread_count()) {
    const int64_t place = places.place(places.group_of(i), places.position_of(i), indices);
    Word word = static_cast<Word>(~Word(0));
    if (place >= 0) word = data[place];
    y[i] = word;
  }
}

// Without updates zeros are put.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    put_kernel(IndexedPlaces places, Indices indices, bool ordered, const Word* updates, Word* y) {
  const auto put = [&](int64_t group, int64_t j, int64_t i) {
    const int64_t place = places.place(group, j, indices);
    if (place >= 0) y[place] = updates ? updates[i] : Word(0);
  };
  if (ordered) {
    for (int64_t group = thread_index(); group < places.groups(); group += thread_count()) {
      for (int64_t j = 0; j < places.length; ++j) put(group, j, places.element(group, j));
    }
  } else {
    for (int64_t i = thread_index(); i < places.elements(); i += thread_count()) {
      put(places.group_of(i), places.position_of(i), i);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_kernel(IndexedPlaces places, Indices indices, const T* updates, float* y) {
  for (int64_t i = thread_index(); i < places.elements(); i += thread_count()) {
    const int64_t place = places.place(places.group_of(i), places.position_of(i), indices);
    if (place >= 0) atomicAdd(y + place, widen(updates[i]));
  }
}

template <typename To, typename From>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(IndexedPlaces places, Indices indices, Reduction reduction, const From* updates, To* y) {
  for (int64_t group = thread_index(); group < places.groups(); group += thread_count()) {
    for (int64_t j = 0; j < places.length; ++j) {
      const int64_t place = places.place(group, j, indices);
      if (place < 0) continue;
      const auto update = number(updates[places.element(group, j)]);
      const auto value = reduced(reduction, number(y[place]), update);
      if constexpr (std::is_integral_v<To>) {
        y[place] = value;
      } else {
        y[place] = narrow<To>(value);
      }
    }
  }
}

struct PlacesLaunch {
  IndexedPlaces places;
  bool wide, ordered;
  int64_t bytes;  // of the output
  int multiprocessors;

  PlacesLaunch(const KernelRequest& request, IndexedKind kind)
      : places(places_of(request, kind)),
        wide(request.inputs[IndexedInput::Indices].dtype == DataType::Int64),
        ordered(request.deterministic),
        bytes(request.outputs[0].bytes()),
        multiprocessors(multiprocessors_of(request)) {}
  Indices indices(const KernelContext& c) const { return {c.inputs[IndexedInput::Indices], wide}; }
  unsigned blocks(bool by_group) const {
    return blocks_for(by_group ? places.groups() : places.elements(), multiprocessors);
  }
  bool nothing() const { return places.elements() == 0; }
  void copy_data(const KernelContext& c) const {
    if (bytes == 0) return;
    CUDA_CHECK(cudaMemcpyAsync(c.outputs[0], c.inputs[0], size_t(bytes), cudaMemcpyDeviceToDevice, stream_of(c)));
  }
};

std::unique_ptr<Kernel> take_cuda(const KernelRequest& request) {
  return with_word(request.inputs[0].dtype, [launch = PlacesLaunch(request, IndexedKind::Take)](auto element) {
    using Word = decltype(element);
    return make_kernel([launch](const KernelContext& c) {
      if (launch.nothing()) return;
      take_kernel<<<launch.blocks(false), kThreads, 0, stream_of(c)>>>(launch.places, launch.indices(c),
                                                                       input<Word>(c, 0), output<Word>(c, 0));
      check_launch("gather by indices");
    });
  });
}

std::unique_ptr<Kernel> put_cuda(const KernelRequest& request, IndexedKind kind) {
  const bool zeros = kind == IndexedKind::Clear;
  return with_word(request.inputs[0].dtype, [launch = PlacesLaunch(request, kind), zeros](auto element) {
    using Word = decltype(element);
    return make_kernel([launch, zeros](const KernelContext& c) {
      launch.copy_data(c);
      if (launch.nothing()) return;
      const bool ordered = launch.ordered && !zeros;
      put_kernel<<<launch.blocks(ordered), kThreads, 0, stream_of(c)>>>(
          launch.places, launch.indices(c), ordered, zeros ? nullptr : input<Word>(c, IndexedInput::Updates),
          output<Word>(c, 0));
      check_launch("scatter");
    });
  });
}

// The updates are input `operand`.
template <typename To, typename From>
void reduce(const KernelContext& c, const PlacesLaunch& launch, Reduction reduction, size_t operand) {
  if (launch.nothing()) return;
  const From* updates = input<From>(c, operand);
  if constexpr (std::is_same_v<To, float>) {
    if (reduction == Reduction::Add && !launch.ordered) {
      add_kernel<<<launch.blocks(false), kThreads, 0, stream_of(c)>>>(launch.places, launch.indices(c), updates,
                                                                      output<float>(c, 0));
      check_launch("scatter, adding");
      return;
    }
  }
  reduce_kernel<<<launch.blocks(true), kThreads, 0, stream_of(c)>>>(launch.places, launch.indices(c), reduction,
                                                                    updates, output<To>(c, 0));
  check_launch("scatter, reducing");
}

std::unique_ptr<Kernel> reduce_cuda(const KernelRequest& request, Reduction reduction) {
  const auto make = [&](auto element) {
    using T = decltype(element);
    return make_kernel([launch = PlacesLaunch(request, IndexedKind::Put), reduction](const KernelContext& c) {
      launch.copy_data(c);
      reduce<T, T>(c, launch, reduction, 2);
    });
  };
  switch (request.inputs[0].dtype) {
    case DataType::Float32: return make(float{});
    case DataType::Bfloat16: return make(__nv_bfloat16{});
    case DataType::Int32: return make(int32_t{});
    case DataType::Int64: return make(int64_t{});
    default: fail_type(request, request.inputs[0].dtype, "float, bfloat16, int32 and int64");
  }
}

std::unique_ptr<Kernel> sum_cuda(const KernelRequest& request) {
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([launch = PlacesLaunch(request, IndexedKind::Sum)](const KernelContext& c) {
      if (launch.bytes == 0) return;
      CUDA_CHECK(cudaMemsetAsync(c.outputs[0], 0, size_t(launch.bytes), stream_of(c)));
      reduce<float, T>(c, launch, Reduction::Add, 0);
    });
  });
}

std::unique_ptr<Kernel> indexed_cuda(const KernelRequest& request, IndexedKind kind) {
  if (kind == IndexedKind::Take) return take_cuda(request);
  if (kind == IndexedKind::Sum) return sum_cuda(request);
  const Reduction reduction = kind == IndexedKind::Put ? reduction_of(request.node) : Reduction::None;
  return reduction == Reduction::None ? put_cuda(request, kind) : reduce_cuda(request, reduction);
}

}  // namespace

void register_indexing_places_cuda(OpRegistry& registry) {
  for (const IndexedOperator& op : kIndexedOperators) {
    registry.find(op.name)->cuda = [kind = op.kind](const KernelRequest& request) {
      return indexed_cuda(request, kind);
    };
  }
}

}  // namespace arbalest
