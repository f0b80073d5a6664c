// SPDX-License-Identifier: Apache-2.0
#pragma once
// float16, bfloat16 and double in a model's file say how it was stored, or what it was to run in. A run chooses its
// precision by itself (--precision), and keeps weights in float.

#include <cstddef>
#include <memory>
#include <vector>

#include "graph/file/graph_source.h"

namespace arbalest {

// ONNX's number of float16, which is no DataType.
inline constexpr int64_t kOnnxFloat16 = 10;

// The floats that elements in float16 are, two bytes each.
std::vector<std::byte> widened_float16(const std::vector<std::byte>& halves);

// Whether the model computes in double: all its stored floating tensors are double but single numbers, or, if it has
// none, its floating inputs. A model of floats may have tables in double.
bool is_in_double(const GraphSource& source);

// Everything that is bfloat16, or is cast to it, becomes float: inputs, initialisers, tensors of attributes. So does
// double, if `doubles`; finite numbers stay finite.
void read_as_float(GraphSource& source, bool doubles);

// Casts whose target is `number`, as ONNX counts types, cast to float.
void cast_to_float_instead(SourceNode& node, int64_t number);

}  // namespace arbalest
