// SPDX-License-Identifier: Apache-2.0

// Range: evenly spaced numbers, which are known when the graph is read.

#include <fmt/format.h>

#include <cmath>

#include "graph/constants.h"
#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

// Value of operand i, a scalar.
template <typename T>
T scalar(const InferContext& context, size_t i) {
  constexpr AttributeKind kKind = std::is_integral_v<T> ? AttributeKind::Int : AttributeKind::Float;
  const Attribute value = content_as(context.graph(), context.node(), i, kKind);
  return T(std::get<std::conditional_t<std::is_integral_v<T>, int64_t, double>>(value));
}

// Number of elements: max(⌈(limit − start) / delta⌉, 0). For integers without rounding and overflow.
template <typename T>
double range_count(const InferContext& context) {
  const T start = scalar<T>(context, 0), limit = scalar<T>(context, 1), delta = scalar<T>(context, 2);
  if (delta == T(0)) context.fail("input 'delta' is 0; expected another step");
  if constexpr (std::is_integral_v<T>) {
    const __int128 way = __int128(limit) - start, step = delta;
    if (way == 0 || (way > 0) != (step > 0)) return 0;
    return double((way + step - (step > 0 ? 1 : -1)) / step);
  } else {
    return std::max(0.0, std::ceil((double(limit) - double(start)) / double(delta)));
  }
}

template <typename F>
auto with_number(const InferContext& context, F&& f) {
  switch (context.input(0).dtype) {
    case DataType::Float32: return f(float{});
    case DataType::Float64: return f(double{});
    case DataType::Int32: return f(int32_t{});
    case DataType::Int64: return f(int64_t{});
    default: break;
  }
  context.fail(fmt::format("input 'start' is {}; expected float, double, int32 or int64", to_string(context.input(0))));
}

void infer_range(InferContext& context) {
  const TensorType start = context.input(0);
  for (size_t i = 1; i < 3; ++i) {
    expect_input(context, i, {start.dtype, context.input(i).shape}, "elements of the type of 'start'");
  }
  const double count = with_number(context, [&](auto number) { return range_count<decltype(number)>(context); });
  if (!(count * double(size_of(start.dtype)) <= double(kMostContentBytes))) {
    context.fail(fmt::format("the output would have {} elements; expected at most {}", count,
                             kMostContentBytes / int64_t(size_of(start.dtype))));
  }
  context.set_output(0, {start.dtype, {int64_t(count)}});
}

std::vector<std::byte> range_of(const InferContext& context) {
  return with_number(context, [&](auto number) {
    using T = decltype(number);
    const T start = scalar<T>(context, 0), delta = scalar<T>(context, 2);
    std::vector<T> numbers(size_t(range_count<T>(context)));
    for (size_t i = 0; i < numbers.size(); ++i) {
      if constexpr (std::is_integral_v<T>) {  // every number fits, but i · delta need not: it may be as far as 2^64
        numbers[i] = T(uint64_t(start) + i * uint64_t(delta));
      } else {
        numbers[i] = T(start + T(i) * delta);
      }
    }
    return bytes_of(numbers);
  });
}

}  // namespace

void register_shape_range(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Range",
                .doc = "start, start + delta, … to before limit; constants",
                .inputs = {{.name = "start", .constant = true},
                           {.name = "limit", .constant = true},
                           {.name = "delta", .constant = true}},
                .outputs = {{.name = "output"}},
                .infer = infer_range,
                .content = range_of});
}

}  // namespace arbalest
