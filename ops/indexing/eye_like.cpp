// SPDX-License-Identifier: Apache-2.0

// EyeLike: a matrix with ones on a diagonal, which is known when the graph is read.

#include <fmt/format.h>

#include <cstring>

#include "graph/constants.h"
#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_eye(InferContext& context) {
  TensorType type = context.input(0);
  if (type.shape.size() != 2) {
    context.fail(fmt::format("{} is {}; expected a matrix", input_name(context, 0), to_string(type)));
  }
  if (context.states("dtype")) {
    const int64_t to = int_attribute(context.node(), "dtype");
    const auto dtype = type_of_onnx(to);
    if (!dtype) {
      context.fail(
          fmt::format("attribute 'dtype' is {} ({}); expected a type that tensors have here", to, onnx_type_name(to)));
    }
    type.dtype = *dtype;
  }
  if (type.bytes() > kMostContentBytes) {
    context.fail(fmt::format("the output would be {}, {} bytes; expected at most {}", to_string(type), type.bytes(),
                             kMostContentBytes));
  }
  context.set_output(0, type);
}

std::vector<std::byte> content_of_eye(const InferContext& context) {
  const TensorType& type = context.graph().values[context.node().outputs[0]].type;
  const int64_t rows = type.shape[0], columns = type.shape[1], k = int_attribute(context.node(), "k");
  std::vector<std::byte> content(size_t(type.bytes()));
  dispatch_element(type.dtype, [&](auto one) {
    one = narrow<decltype(one)>(1);
    // Without i + k, which need not fit: k may be any number.
    for (int64_t i = 0; i < rows; ++i) {
      if (k < -i || k >= columns - i) continue;
      std::memcpy(content.data() + size_t(i * columns + i + k) * sizeof one, &one, sizeof one);
    }
  });
  return content;
}

}  // namespace

void register_indexing_eye_like(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "EyeLike",
                .doc = "a matrix as large as input, with ones on a diagonal and zeros elsewhere; a constant",
                .inputs = {{.name = "input"}},
                .outputs = {{.name = "output"}},
                .attributes = {int_spec("dtype", 0, "ONNX's number of the element type; not given: input's"),
                               int_spec("k", 0, "the diagonal; above the main one if it is greater than 0")},
                .infer = infer_eye,
                .content = content_of_eye});
}

}  // namespace arbalest
