// SPDX-License-Identifier: Apache-2.0
#pragma once
// Graphs that call models whose files a test writes.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "graph/file/graph_file.h"
#include "ops/builtin_ops.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/passes_fixture.h"

namespace arbalest::test {

struct ModelFolder : FileTestFolder {
  static void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

  Graph read(const std::string& nodes, const ModelFiles& models, const char* input = "float[5,2,4,4] x") const {
    return read_graph_text(fmt::format("g ({}) => () {{ {} }}", input, nodes), file("graph.onnxtxt"), builtin_ops(), 0,
                           models);
  }
  std::string fault(const std::string& nodes, const ModelFiles& models) const {
    return error_of([&] { read(nodes, models); });
  }
};

inline std::vector<float> floats(const Value& value) {
  REQUIRE(value.initializer.kind == Initializer::Kind::Data);
  std::vector<float> numbers(size_t(value.type.elements()));
  std::memcpy(numbers.data(), value.initializer.data->data(), value.initializer.data->size());
  return numbers;
}

inline bool has(const std::string& text, const std::string& phrase) {
  return text.find(phrase) != text.npos;
}

}  // namespace arbalest::test
