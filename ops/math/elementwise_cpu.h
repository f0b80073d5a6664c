// SPDX-License-Identifier: Apache-2.0
#pragma once
// CPU loops of elementwise operators: out[i] = function(in[i]...), in the wide types of the inputs. An operator
// compiles one loop for each type, over neighbouring elements; what walks through tensors is compiled once.

#include <array>
#include <memory>
#include <utility>

#include "ops/cpu.h"
#include "ops/math/elementwise_table.h"
#include "ops/math/strided.h"

namespace arbalest {

// Computes out[i] = function(in[0][i], in[1][i], …) for `count` neighbouring elements. `out` is apart from the inputs,
// or is one of them. Of input `still`, if there is one, all elements are the first.
using RowFunction = void (*)(const void* function, int64_t count, void* out, const void* const* in, int still);

template <int still, typename T, typename F, typename... In>
void map_row(const F& function, int64_t count, T* out, const In*... in) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    ARBALEST_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) out[i] = narrow<T>(function(widen(in[int(I) == still ? 0 : i])...));
  }
  (std::index_sequence_for<In...>());
}

// A row function and the elements that it takes.
struct RowMap {
  static constexpr size_t kMostInputs = 3;
  RowFunction row;
  const void* function = nullptr;
  size_t inputs = 1;
  size_t out_bytes = 0;                           // of an element
  std::array<size_t, kMostInputs> in_bytes = {};  // of an element of each input
  bool broadcasts = false;                        // takes an input that stands still
};

// Offset in a tensor, in elements, of element `index` of the walk.
inline int64_t offset_of(const Strided& walk, size_t tensor, int64_t index) {
  int64_t offset = 0;
  for (int axis = walk.rank - 1; axis > 0; --axis) {
    offset += index % walk.extent[axis] * walk.stride[tensor][axis];
    index /= walk.extent[axis];
  }
  return offset + index * walk.stride[tensor][0];
}

// The place of a walk in one of its tensors.
class Cursor {
 public:
  Cursor() = default;
  Cursor(const Strided& walk, size_t tensor, int64_t index)
      : walk_(&walk), stride_(walk.stride[tensor]), offset_(offset_of(walk, tensor, index)) {
    for (int axis = walk.rank - 1; axis >= 0; --axis) {
      at_[axis] = index % walk.extent[axis];
      index /= walk.extent[axis];
    }
  }
  int64_t offset() const { return offset_; }  // elements
  int64_t step() const { return stride_[walk_->rank - 1]; }
  // Elements left of the run along the innermost axis.
  int64_t left() const { return walk_->inner() - at_[walk_->rank - 1]; }
  // Goes on by `count` elements, at most left().
  void advance(int64_t count) {
    int axis = walk_->rank - 1;
    at_[axis] += count;
    offset_ += count * stride_[axis];
    for (; axis > 0 && at_[axis] == walk_->extent[axis]; --axis) {
      at_[axis] = 0;
      ++at_[axis - 1];
      offset_ += stride_[axis - 1] - walk_->extent[axis] * stride_[axis];
    }
  }

 private:
  const Strided* walk_ = nullptr;
  const int64_t* stride_ = nullptr;
  int64_t offset_ = 0;
  int64_t at_[Strided::kMaxRank] = {};
};

// Tensor 0 of the walk is `out`, which lies without gaps in the order of the walk; the inputs follow.
void map_strided(const Strided& walk, int64_t count, const RowMap& map, void* out, const void* const* in);

template <typename T, typename F, typename... In>
void map_strided(const Strided& walk, int64_t count, const F& function, T* out, const In*... in) {
  const RowFunction row = [](const void* f, int64_t n, void* to, const void* const* from, int) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      map_row<-1>(*static_cast<const F*>(f), n, static_cast<T*>(to), static_cast<const In*>(from[I])...);
    }
    (std::index_sequence_for<In...>());
  };
  const void* const inputs[] = {in...};
  map_strided(
      walk, count,
      {.row = row, .function = &function, .inputs = sizeof...(In), .out_bytes = sizeof(T), .in_bytes = {sizeof(In)...}},
      out, inputs);
}

// The same where the output is the input, tensor 1 of the walk; elements have 1, 2, 4 or 8 bytes.
void copy_strided(const Strided& walk, int64_t count, size_t bytes, void* out, const void* in);

namespace elementwise {

// The loops of an operator whose functor is made of Parameters, by the type of elements; null where there is none.
struct TypedRows {
  size_t inputs = 0;
  bool broadcasts = false;  // the loops take an input that stands still
  RowFunction floats = nullptr, doubles = nullptr, bfloat16s = nullptr;
  RowFunction uint8s = nullptr, int32s = nullptr, int64s = nullptr;
};

template <typename Functor, typename T, size_t inputs, bool broadcasts>
void functor_row(const void* parameters, int64_t count, void* out, const void* const* in, int still) {
  const Functor functor{*static_cast<const Parameters*>(parameters)};
  [&]<size_t... I>(std::index_sequence<I...>) {
    T* to = static_cast<T*>(out);
    if constexpr (broadcasts) {
      if (still == 0) return map_row<0>(functor, count, to, static_cast<const T*>(in[I])...);
      if (still == 1) return map_row<1>(functor, count, to, static_cast<const T*>(in[I])...);
      if constexpr (inputs == 3) {
        if (still == 2) return map_row<2>(functor, count, to, static_cast<const T*>(in[I])...);
      }
    }
    map_row<-1>(functor, count, to, static_cast<const T*>(in[I])...);
  }
  (std::make_index_sequence<inputs>());
}

template <typename Functor, size_t inputs, bool broadcasts>
TypedRows floating_rows() {
  return {.inputs = inputs,
          .broadcasts = broadcasts,
          .floats = functor_row<Functor, float, inputs, broadcasts>,
          .doubles = functor_row<Functor, double, inputs, broadcasts>,
          .bfloat16s = functor_row<Functor, bfloat16, inputs, broadcasts>};
}

// A region's knowledge of an operator whose functor is made of Parameters.
ElementFunction element_function(std::string_view text, std::vector<std::string> arguments, const TypedRows& rows);

// A gradient's loops, and which operands it has after dY.
struct GradientRows {
  bool first, second;
  TypedRows rows;
  ElementFunction element;  // of a line of the table
};
template <typename Gradient, bool broadcasts>
GradientRows gradient_rows() {
  using Formula = typename Gradient::Of;
  constexpr size_t inputs = 1 + Gradient::kFirst + Gradient::kSecond;
  GradientRows gradient{Gradient::kFirst, Gradient::kSecond, floating_rows<Gradient, inputs, broadcasts>(), {}};
  if constexpr (requires { Formula::kText; }) {
    std::vector<std::string> arguments = {"dy"};
    if (Gradient::kFirst) arguments.emplace_back(Formula::kFirstName);
    if (Gradient::kSecond) arguments.emplace_back(Formula::kSecondName);
    gradient.element = element_function(Formula::kText, std::move(arguments), gradient.rows);
  }
  return gradient;
}

// The kernel of these loops for the types of the request, whose output is tensor 0 of the walk.
std::unique_ptr<Kernel> row_kernel(const KernelRequest& request, const TypedRows& rows, const Parameters& parameters,
                                   const Strided& walk);
// The same for an operator whose inputs broadcast to its output, with the values of its node's attributes.
KernelFactory row_kernels(const TypedRows& rows);

}  // namespace elementwise

}  // namespace arbalest
