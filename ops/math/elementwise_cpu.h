#pragma once
// CPU loops of elementwise operators: out[i] = function(in[i]...), in the wide types of the inputs.

#include <array>
#include <type_traits>

#include "ops/cpu.h"
#include "ops/math/strided.h"

namespace arbalest {

// All tensors in one order.
template <typename T, typename F, typename... In>
void map_elements(int64_t count, const F& function, T* out, const In*... in) {
  parallel_for(count, 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = narrow<T>(function(widen(in[i])...));
  });
}

// Steps of 0 and 1 are constants, so that the common loops are vectorised.
template <typename F>
void with_step(int64_t step, const F& f) {
  if (step == 1) {
    f(std::integral_constant<int64_t, 1>());
  } else if (step == 0) {
    f(std::integral_constant<int64_t, 0>());
  } else {
    f(step);
  }
}

// One run along the innermost axis, each input with its own step. The first of three is the gradient that flows back,
// which hardly ever steps by other than 1.
template <typename T, typename F, typename A>
void map_run(int64_t count, const F& function, const std::array<int64_t, 1>& step, T* out, const A* a) {
  with_step(step[0], [&](auto sa) {
    for (int64_t i = 0; i < count; ++i) out[i] = narrow<T>(function(widen(a[i * sa])));
  });
}
template <typename T, typename F, typename A, typename B>
void map_run(int64_t count, const F& function, const std::array<int64_t, 2>& step, T* out, const A* a, const B* b) {
  with_step(step[0], [&](auto sa) {
    with_step(step[1], [&](auto sb) {
      for (int64_t i = 0; i < count; ++i) out[i] = narrow<T>(function(widen(a[i * sa]), widen(b[i * sb])));
    });
  });
}
template <typename T, typename F, typename D, typename A, typename B>
void map_run(int64_t count, const F& function, const std::array<int64_t, 3>& step, T* out, const D* d, const A* a,
             const B* b) {
  with_step(step[1], [&](auto sa) {
    with_step(step[2], [&](auto sb) {
      for (int64_t i = 0; i < count; ++i) {
        out[i] = narrow<T>(function(widen(d[i * step[0]]), widen(a[i * sa]), widen(b[i * sb])));
      }
    });
  });
}

// Offset in a tensor, in elements, of element `index` of the walk.
inline int64_t offset_of(const Strided& walk, size_t tensor, int64_t index) {
  int64_t offset = 0;
  for (int axis = walk.rank - 1; axis > 0; --axis) {
    offset += index % walk.extent[axis] * walk.stride[tensor][axis];
    index /= walk.extent[axis];
  }
  return offset + index * walk.stride[tensor][0];
}

// Tensor 0 of the walk is `out`, which lies without gaps in the order of the walk; the inputs follow.
template <typename T, typename F, typename... In>
void map_strided(const Strided& walk, int64_t count, const F& function, T* out, const In*... in) {
  constexpr size_t inputs = sizeof...(In);
  if (walk.contiguous(inputs + 1)) return map_elements(count, function, out, in...);
  std::array<int64_t, inputs> step;
  for (size_t t = 0; t < inputs; ++t) step[t] = walk.inner_stride(t + 1);
  parallel_for(count, 1, [&walk, &function, &step, out, in...](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t run = std::min(end - begin, walk.inner() - begin % walk.inner());
      size_t tensor = 0;
      const auto at = [&](auto* base) { return base + offset_of(walk, ++tensor, begin); };
      const std::tuple<const In*...> from{at(in)...};  // braces: from left to right
      std::apply([&](auto*... p) { map_run(run, function, step, out + begin, p...); }, from);
      begin += run;
    }
  });
}

}  // namespace arbalest
