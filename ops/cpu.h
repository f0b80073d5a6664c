// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers of CPU kernels: dispatch on element types, wide arithmetic, and loops over threads.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "graph/op.h"

// Before a loop whose arrays either are the same or do not overlap: it may be vectorised without a check.
#if defined(__clang__)
#define ARBALEST_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define ARBALEST_INDEPENDENT _Pragma("GCC ivdep")
#else
#define ARBALEST_INDEPENDENT
#endif

namespace arbalest {

// The type that arithmetic and sums are in: double for double (the oracle), integers for integers, else float.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double> || std::is_integral_v<T>, T, float>;

// The value in the type that arithmetic is in.
template <typename T>
inline Wide<T> widen(T value) {
  return static_cast<Wide<T>>(value);
}
// The value in the type of elements, rounded.
template <typename T>
inline T narrow(Wide<T> value) {
  return static_cast<T>(value);
}

// Calls f(T{}) for the C++ type of `type`.
template <typename F>
auto dispatch_floating(DataType type, F&& f) {
  switch (type) {
    case DataType::Float32: return f(float{});
    case DataType::Float64: return f(double{});
    case DataType::Bfloat16: return f(bfloat16{});
    default: break;
  }
  throw RunError("no CPU kernel for elements of type " + std::string(name_of(type)));
}

// The same for elements of any type; bool for Bool.
template <typename F>
auto dispatch_element(DataType type, F&& f) {
  switch (type) {
    case DataType::Bool: return f(bool{});
    case DataType::Uint8: return f(uint8_t{});
    case DataType::Int32: return f(int32_t{});
    case DataType::Int64: return f(int64_t{});
    default: return dispatch_floating(type, f);
  }
}

// A kernel factory from a generic lambda (request, T{}) -> std::unique_ptr<Kernel>; T is the type of input `operand`.
template <typename F>
KernelFactory floating_kernel(F make, size_t operand = 0) {
  return [make, operand](const KernelRequest& request) -> std::unique_ptr<Kernel> {
    return dispatch_floating(request.inputs[operand].dtype, [&](auto element) { return make(request, element); });
  };
}

// A loop over begin … end − 1 that run_parts() calls.
using PartFunction = void (*)(const void* f, int64_t begin, int64_t end);
// Calls f(begin, end) on parts of 0 … count − 1, on OpenMP's threads if the whole costs at least about 20 µs. Here
// `work` is the number of simple operations in one of the `count`. The loop in f is compiled once, for both ways.
void run_parts(int64_t count, int64_t work, PartFunction part, const void* f);

// Calls f(begin, end) as run_parts() does.
template <typename F>
void parallel_for(int64_t count, int64_t work, const F& f) {
  const PartFunction part = [](const void* of, int64_t begin, int64_t end) {
    (*static_cast<const F*>(of))(begin, end);
  };
  run_parts(count, work, part, &f);
}

// term(i) over 0 … count − 1, combined from `start` on. Results in lanes, which a compiler keeps in vector registers,
// are combined at the end: the order depends on `count` alone.
template <typename Value, typename Combine, typename Term>
Value combine_in_lanes(int64_t count, Value start, const Combine& combine, const Term& term) {
  constexpr int64_t kLanes = 64 / int64_t(sizeof(Value));
  Value lane[kLanes];
  std::fill(lane, lane + kLanes, start);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lane[l] = combine(lane[l], term(i + l));
  }
  for (int64_t l = 0; i < count; ++i, ++l) lane[l] = combine(lane[l], term(i));
  for (const Value part : lane) start = combine(start, part);
  return start;
}

// Σ term(i) over 0 … count − 1.
template <typename Sum, typename Term>
Sum sum_in_lanes(int64_t count, const Term& term) {
  return combine_in_lanes(count, Sum(0), std::plus<Sum>(), term);
}

// Elements of input i; nullptr if it is left out.
template <typename T>
const T* input(const KernelContext& context, size_t i) {
  return static_cast<const T*>(context.inputs[i]);
}
// Elements of output i; nullptr if it was not asked for.
template <typename T>
T* output(const KernelContext& context, size_t i) {
  return static_cast<T*>(context.outputs[i]);
}

// Samples of the batch that count, between 0 and `batch`.
inline int64_t valid_samples(const KernelContext& context, int64_t batch) {
  return std::clamp<int64_t>(context.scalars->valid, 0, batch);
}

}  // namespace arbalest
