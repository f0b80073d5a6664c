// SPDX-License-Identifier: Apache-2.0

// NonZero: the indices of elements that are not 0. Their number is part of the type, so the elements have to be known
// when the graph is read: masks that models index with, such as x[:, mask].

#include <fmt/format.h>

#include <algorithm>

#include "graph/constants.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

// Flat indices, ascending.
std::vector<int64_t> found_places(const InferContext& context) {
  const TensorType& x = context.input(0);
  const auto content = content_of(context.graph(), context.node().inputs[0]);
  if (!content) {
    context.fail(
        fmt::format("{} is {}, computed when the graph runs, so that the number of results would change from "
                    "batch to batch; expected a constant",
                    input_name(context, 0), to_string(x)));
  }
  const size_t width = size_of(x.dtype);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < x.elements(); ++i) {
    const std::byte* element = content->data() + size_t(i) * width;
    const std::byte last = is_floating(x.dtype) ? std::byte{0x7f} : std::byte{0xff};  // without the sign of −0
    if ((element[width - 1] & last) != std::byte{0} ||
        std::any_of(element, element + width - 1, [](std::byte part) { return part != std::byte{0}; })) {
      places.push_back(i);
    }
  }
  return places;
}

void infer_non_zero(InferContext& context) {
  const auto rank = int64_t(context.input(0).shape.size());
  const TensorType type{DataType::Int64, {rank, int64_t(found_places(context).size())}};
  if (type.bytes() > kMostContentBytes) {
    context.fail(fmt::format("the output would be {}, {} bytes; expected at most {}", to_string(type), type.bytes(),
                             kMostContentBytes));
  }
  context.set_output(0, type);
}

std::vector<std::byte> content_of_non_zero(const InferContext& context) {
  const Shape& shape = context.input(0).shape;
  const std::vector<int64_t> places = found_places(context);
  std::vector<int64_t> indices(shape.size() * places.size());
  int64_t inner = 1;
  for (size_t axis = shape.size(); axis-- > 0; inner *= shape[axis]) {
    for (size_t i = 0; i < places.size(); ++i) {
      indices[axis * places.size() + i] = places[i] / inner % shape[axis];
    }
  }
  return bytes_of(indices);
}

}  // namespace

void register_indexing_non_zero(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "NonZero",
                .doc = "the indices of the elements of a constant that are not 0: a row for each axis",
                .inputs = {{.name = "X", .constant = true}},
                .outputs = {{.name = "Y"}},
                .infer = infer_non_zero,
                .content = content_of_non_zero});
}

}  // namespace arbalest
