// SPDX-License-Identifier: Apache-2.0

// Trilu: the upper or the lower triangle of matrices, zeros elsewhere.

#include "ops/shape/trilu.h"

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {

Triangle::Triangle(const KernelRequest& request) : upper(flag_attribute(request.node, "upper")) {
  const Shape& shape = request.inputs[0].shape;
  columns = shape[shape.size() - 1];
  rows = shape[shape.size() - 2];
  for (size_t i = 0; i + 2 < shape.size(); ++i) matrices *= shape[i];
  k = std::clamp(int_attribute(request.node, "k"), -rows, columns);  // beyond, nothing changes
}

namespace {

void infer_trilu(InferContext& context) {
  const TensorType& x = context.input(0);
  if (x.shape.size() < 2) {
    context.fail(fmt::format("{} is {}; expected a rank of 2 or more", input_name(context, 0), to_string(x)));
  }
  flag_attribute(context.node(), "upper");
  context.integer("k");
  context.set_output(0, x);
}

void grad_trilu(GradContext& c) {
  c.add_input_gradient("Trilu", {}, c.node().attributes);
}

std::unique_ptr<Kernel> trilu_cpu(const KernelRequest& request) {
  const int64_t bytes = int64_t(size_of(request.inputs[0].dtype));
  return make_kernel([t = Triangle(request), bytes](const KernelContext& c) {
    if (t.elements() == 0) return;
    const auto* x = input<std::byte>(c, 0);
    auto* y = output<std::byte>(c, 0);
    parallel_for(t.matrices * t.rows, t.columns, [=, &t](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        // Column where the kept part of a row begins (upper) or ends.
        const int64_t split = std::clamp<int64_t>(i % t.rows + t.k + (t.upper ? 0 : 1), 0, t.columns);
        const auto* from = x + i * t.columns * bytes;
        auto* to = y + i * t.columns * bytes;
        const size_t before = size_t(split * bytes), after = size_t((t.columns - split) * bytes);
        if (t.upper) {
          std::memset(to, 0, before);
          std::memcpy(to + before, from + before, after);
        } else {
          std::memcpy(to, from, before);
          std::memset(to + before, 0, after);
        }
      }
    });
  });
}

std::vector<Sample> trilu_samples() {
  struct Case {
    Shape shape;
    int64_t k;
    DataType type = DataType::Float32;
  };
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  std::vector<Sample> samples;
  for (const Case& c :
       {Case{{5, 5}, 0}, Case{{3, 7}, 2}, Case{{7, 3}, -2}, Case{{2, 3, 4, 5}, 1}, Case{{1, 6}, -1}, Case{{4, 4}, kFar},
        Case{{4, 4}, -kFar}, Case{{70, 130}, 5}, Case{{2, 0, 3}, 0}, Case{{3, 4}, 0, DataType::Bool},
        Case{{3, 4}, 1, DataType::Uint8}, Case{{3, 4}, -1, DataType::Int32}, Case{{3, 4}, 0, DataType::Int64}}) {
    for (const int64_t upper : {0, 1}) {
      samples.push_back({.name = fmt::format("{}, k {}, upper {}", to_string(TensorType{c.type, c.shape}), c.k, upper),
                         .inputs = {{.type = {c.type, c.shape}, .low = 1, .high = 1}},
                         .attributes = {{"k", c.k}, {"upper", upper}},
                         .tolerance = 0});
      if (is_floating(c.type)) samples.back().inputs[0].high = 2;
    }
  }
  return samples;
}

}  // namespace

void register_shape_trilu(OpRegistry& registry) {
  registry.add(
      {.domain = "",
       .name = "Trilu",
       .doc = "the upper or lower triangle of matrices, the last two axes, and zeros elsewhere",
       .inputs = {{.name = "input", .lowered = true}, {.name = "k", .arity = OperandSpec::Optional, .constant = true}},
       .outputs = {{.name = "output", .lowered = true}},
       .attributes = {int_spec("k", 0, "the diagonal that the triangle ends with; positive: above the main one"),
                      int_spec("upper", 1, "1: the upper triangle, 0: the lower")},
       .infer = infer_trilu,
       .grad = grad_trilu,
       .cost = elementwise_cost(0),
       .samples = trilu_samples,
       .cpu = trilu_cpu});
}

}  // namespace arbalest
