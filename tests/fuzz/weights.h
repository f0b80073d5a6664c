// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helper of fuzz targets of weights: a file read for values of a graph.

#include "executor/weights/weights_file.h"
#include "tests/fuzz/target.h"

namespace arbalest::fuzz {

inline Value value_named(const std::string& name, DataType dtype, const Shape& shape) {
  Value value;
  value.name = name;
  value.type = {dtype, shape};
  return value;
}

// Everything that a file of weights is asked for.
inline void adopt(const WeightsFile& file) {
  file.class_names();
  file.shards();
  std::vector<std::string> names;
  for (const Value& value :
       {value_named("a", DataType::Float32, {2, 3}), value_named("a.weight", DataType::Bfloat16, {4}),
        value_named("b.weight", DataType::Float32, {2, 1, 3, 3})}) {
    names.push_back(value.name);
    if (file.has(value.name)) accepted([&] { file.read(value); });
  }
  file.summary(names);
  file.check(names);
}

}  // namespace arbalest::fuzz
