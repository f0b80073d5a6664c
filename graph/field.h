// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fields: the named, typed arrays that a sample consists of. A source states them, Prefetch's outputs follow from them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

struct Field {
  std::string name;                    // "image": letters, digits and underscores
  DataType dtype = DataType::Float32;  // String: bytes of any length, such as an image file
  Shape shape;                         // of one sample: (C, H, W) of an image, () of a number
  int64_t classes = 0;                 // of a class index: values are 0 … classes − 1; 0: not a class index

  TensorType sample() const { return {dtype, shape}; }
  // Samples of three dimensions are images, which are channels-last in memory; all others are row-major.
  TensorType batch(int64_t samples) const;
  bool operator==(const Field&) const = default;
};

// "image uint8[3,32,32]", "image string[]", "label int32[] of 10 classes"; several are joined by commas. This is how
// Prefetch's attribute `fields` states them.
std::string to_string(const Field& field);
std::string to_string(const std::vector<Field>& fields);

// Reads what to_string() writes. Throws GraphError.
Field parse_field(std::string_view text);

// Throws GraphError if a field cannot be one (its name, type, extents or number of classes), if two have the same
// name, or if there is none. `owner` is named in the message.
void check_fields(const std::vector<Field>& fields, const std::string& owner);

// Prefetch's attribute `fields`: empty as long as nobody has opened the source. Throws GraphError.
std::vector<Field> fields_of(const Node& prefetch);
void set_fields(Node& prefetch, const std::vector<Field>& fields);

// For each output of a Prefetch node, the index of its field; kNone for one left out. An output that is named like a
// field is that field; any other output is the field at its position, unless the attribute `by_name` is 1. Throws
// GraphError at the node if outputs and fields do not fit.
std::vector<int> fields_of_outputs(const Graph& graph, const Node& prefetch, const std::vector<Field>& fields);

}  // namespace arbalest
