// Flatten to a matrix in logical order. Images are channels-last in memory, so N·H·W·C becomes N·C·H·W: a permuting
// copy.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_flatten(InferContext& context) {
  const TensorType& x = floating_input(context, 0);
  const int64_t rank = int64_t(x.shape.size());
  int64_t axis = int_attribute(context.node(), "axis");
  if (axis < -rank || axis > rank) {
    context.fail(
        fmt::format("attribute 'axis' is {}; expected {} to {} for input 'X', {}", axis, -rank, rank, to_string(x)));
  }
  if (axis < 0) axis += rank;
  const Shape outer(x.shape.begin(), x.shape.begin() + axis), inner(x.shape.begin() + axis, x.shape.end());
  context.set_output(0, {x.dtype, {element_count(outer), element_count(inner)}});
}

void infer_unflatten(InferContext& context) {
  const TensorType &dy = floating_input(context, 0, {2}), &x = context.input(1);
  if (dy.elements() != x.elements()) {
    context.fail(fmt::format("input 'dY' is {}, of {} elements; expected the {} of 'X', {}", to_string(dy),
                             dy.elements(), x.elements(), to_string(x)));
  }
  context.set_output(0, {dy.dtype, x.shape});
}

// How an image lies in memory beside its logical order: (batch, pixels, channels) against (batch, channels, pixels).
struct Permutation {
  int64_t batch = 1, pixels = 1, channels = 1;
  explicit Permutation(const TensorType& type) {
    if (type.shape.size() == 4) {
      batch = type.shape[0], channels = type.shape[1], pixels = type.shape[2] * type.shape[3];
    } else {
      channels = type.elements();
    }
  }
};

// y (batch, columns, rows) = x (batch, rows, columns), transposed.
template <typename T>
void transpose(int64_t batch, int64_t rows, int64_t columns, const T* x, T* y) {
  const int64_t matrix = rows * columns;
  if (rows == 1 || columns == 1) {
    if (matrix * batch > 0) std::memcpy(y, x, size_t(batch * matrix) * sizeof(T));
    return;
  }
  parallel_for(batch, matrix * 2, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T* from = x + n * matrix;
      T* to = y + n * matrix;
      for (int64_t column = 0; column < columns; ++column) {
        for (int64_t row = 0; row < rows; ++row) to[column * rows + row] = from[row * columns + column];
      }
    }
  });
}

std::unique_ptr<Kernel> flatten_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  return make_kernel([p = Permutation(request.inputs[0])](const KernelContext& context) {
    transpose(p.batch, p.pixels, p.channels, input<T>(context, 0), output<T>(context, 0));
  });
}

std::unique_ptr<Kernel> unflatten_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  return make_kernel([p = Permutation(request.outputs[0])](const KernelContext& context) {
    transpose(p.batch, p.channels, p.pixels, input<T>(context, 0), output<T>(context, 0));
  });
}

std::vector<Sample> flatten_samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{2, 3, 5, 7}, Shape{3, 16, 1, 1}, Shape{2, 1, 4, 5}, Shape{4, 6},
                             Shape{2, 3, 4}, Shape{64, 50, 4, 4}}) {
    samples.push_back({.name = to_string(shape), .inputs = {{{DataType::Float32, shape}}}, .tolerance = 0});
  }
  samples.push_back({.name = "axis 2",
                     .inputs = {{{DataType::Float32, {2, 3, 5, 4}}}},
                     .attributes = {{"axis", int64_t{2}}},
                     .tolerance = 0});
  samples.push_back({.name = "axis 0",
                     .inputs = {{{DataType::Float32, {2, 3, 5, 4}}}},
                     .attributes = {{"axis", int64_t{0}}},
                     .tolerance = 0});
  return samples;
}

std::vector<Sample> unflatten_samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{3, 16, 1, 1}, Shape{2, 1, 4, 5}, Shape{64, 50, 4, 4}}) {
    const Shape flat{shape[0], element_count(shape) / shape[0]};
    samples.push_back({.name = to_string(shape),
                       .inputs = {{{DataType::Float32, flat}}, {{DataType::Float32, shape}}},
                       .tolerance = 0});
  }
  return samples;
}

}  // namespace

void register_flatten(OpRegistry& registry) {
  registry.add(
      {.domain = "",
       .name = "Flatten",
       .doc = "X as a matrix: the axes before `axis` by those from it on, in logical (N, C, H, W) order",
       .inputs = {{.name = "X", .lowered = true}},
       .outputs = {{.name = "Y", .lowered = true}},
       .attributes = {int_spec("axis", 1, "the first axis of the second extent; negative counts from the end")},
       .infer = infer_flatten,
       .grad =
           [](GradContext& c) {
             if (!c.needs_gradient(0)) return;
             c.set_input_gradient(0,
                                  c.add("arbalest.Unflatten", "grad_input", {c.output_gradient(0), c.input(0)}, 1)[0]);
           },
       .cost = elementwise_cost(0),
       .samples = flatten_samples,
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return flatten_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "Unflatten",
                .doc = "dY in the shape of X: the inverse of Flatten; X is not read",
                .inputs = {{.name = "dY", .lowered = true}, {.name = "X", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .internal = true,
                .infer = infer_unflatten,
                .cost = elementwise_cost(0),
                .samples = unflatten_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return unflatten_cpu(r, t); })});
}

}  // namespace arbalest
