// SPDX-License-Identifier: Apache-2.0

// Sources of regions and of elementwise operators, compiled for several architectures. No GPU is needed. Compiled only
// with CUDA.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"
#include "ops/cuda/compiled_kernel.h"
#include "ops/regions/region.h"

using namespace arbalest;

namespace region_cuda_test {
namespace {

// Every elementwise operator, each of the inputs 0, 1, 2 …, as many to a program as one takes.
std::vector<RegionProgram> all_operators(size_t inputs) {
  std::vector<RegionProgram> programs;
  for (const Op& op : builtin_ops().all()) {
    if (!op.element) continue;
    if (programs.empty() || programs.back().steps.size() == RegionProgram::kMostSteps)
      programs.push_back({inputs, {}, {}, {}});
    RegionStep step{&op, {}, {0.25, 0.75}};
    for (size_t k = 0; k < op.element->arguments.size(); ++k) step.operands.push_back(k);
    programs.back().results = {programs.back().steps.size()};
    programs.back().steps.push_back(std::move(step));
  }
  return programs;
}

std::vector<DataType> elements_of(const std::vector<TensorType>& types) {
  std::vector<DataType> elements;
  for (const TensorType& type : types) elements.push_back(type.dtype);
  return elements;
}

void check_compiles(const RegionProgram& program, const TensorType& space, const std::vector<TensorType>& inputs,
                    DataType output) {
  const RegionWalk walk(space, inputs, program);
  const std::vector<DataType> outputs(program.results.size(), output);
  const RegionSource source = region_source(program, walk, elements_of(inputs), outputs);
  for (const char* architecture : {"sm_80", "sm_90", "sm_120"}) {
    INFO(architecture, "\n", source.text);
    CHECK_NOTHROW(compile_cuda(source.text, architecture));
  }
}

// The kernel of the operator alone. Inputs that follow the compute precision are of type `lowered`. "": no region takes
// these types.
std::string source_of(const Op& op, std::vector<TensorType> inputs, DataType lowered, const Attributes& attributes) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dtype == DataType::Float32 && op.input_spec(i)->lowered) inputs[i].dtype = lowered;
  }
  const test::Case graph(op, inputs, 1, attributes);
  const TensorType space = graph.output_types()[0];
  if (!is_region_step(op, elements_of(inputs), space.dtype)) return "";
  const RegionProgram program = one_step(graph.get());
  const RegionWalk walk(space, inputs, program);
  inputs.resize(program.inputs);
  return region_source(program, walk, elements_of(inputs), {space.dtype}).text;
}

// The kernel of each elementwise operator's first sample that a region takes, for each type of elements.
std::map<std::string, std::string> sources_of_operators() {
  std::map<std::string, std::string> sources;
  for (const Op& op : builtin_ops().all()) {
    if (!op.element) continue;
    for (const DataType type : {DataType::Float32, DataType::Bfloat16}) {
      std::string& source = sources[fmt::format("{}, {}", op.qualified_name(), name_of(type))];
      for (const Sample& sample : op.samples()) {
        std::vector<TensorType> inputs;
        for (const Sample::Input& input : sample.inputs) inputs.push_back(input.type);
        if (source.empty()) source = source_of(op, inputs, type, sample.attributes);
      }
    }
  }
  return sources;
}

}  // namespace

TEST_CASE("regions: every elementwise operator compiles for GPUs of all generations") {
  using enum DataType;
  const std::vector<RegionProgram> programs = all_operators(3);
  REQUIRE(!programs.empty());
  for (const RegionProgram& program : programs) {
    const TensorType space{Bfloat16, {4, 6, 40}};
    check_compiles(program, space, {space, space, space}, Bfloat16);
  }
}

TEST_CASE("regions: operands of every kind of place and type compile") {
  using enum DataType;
  const RegionProgram program = all_operators(3)[0];
  for (const DataType other : {Float32, Bfloat16, Bool}) {
    const TensorType space{Float32, {4, 6, 40}}, row{other, {40}}, column{Float32, {6, 1}}, one{Float32, {}};
    check_compiles(program, space, {space, row, column}, Float32);
    check_compiles(program, space, {{other, {4, 6, 40}}, one, {Bfloat16, {4, 1, 40}}}, Bfloat16);
    // Channels last: one number a channel, one a channel and sample, and an operand that lies in another order.
    const TensorType image = TensorType{Float32, {2, 8, 6, 4}}.in(Layout::ChannelsLast);
    check_compiles(program, image, {image, TensorType{other, {2, 8, 1, 1}}, TensorType{Float32, {2, 8, 6, 4}}},
                   Bfloat16);
    check_compiles(program, {Float32, {3, 7}}, {{Float32, {3, 7}}, {other, {7}}, {Float32, {3, 1}}}, Float32);
  }
}

TEST_CASE("regions: sums over rows, and operands that are the same for all rows, compile") {
  using enum DataType;
  RegionProgram program = all_operators(3)[0];
  for (const DataType other : {Float32, Bfloat16, Bool}) {
    const TensorType space{Float32, {4, 6, 40}}, row{other, {40}}, one{Float32, {}};
    check_compiles(program, space, {{Bfloat16, space.shape}, row, row}, Bfloat16);
    for (const bool results : {true, false}) {
      RegionProgram sums = program;
      sums.sums = {{0, 1}, {sums.inputs + 2, 0.5}, {sums.inputs + 2, 1}};
      if (!results) sums.results.clear();
      check_compiles(sums, space, {space, row, {Bfloat16, {4, 1, 40}}}, Bfloat16);
      check_compiles(sums, space, {space, space, one}, Float32);
      const TensorType image = TensorType{Bfloat16, {2, 9, 6, 4}}.in(Layout::ChannelsLast);
      check_compiles(sums, image, {image, TensorType{other, {2, 9, 1, 1}}, TensorType{Float32, {2, 9, 6, 4}}},
                     Bfloat16);
    }
  }
}

TEST_CASE("regions: sums of samples, and operands that are the same for all rows of one, compile") {
  using enum DataType;
  RegionProgram program = all_operators(3)[0];
  for (const size_t rank : {1, 2, 4}) {
    program.sums = {{0, 1, rank}, {program.inputs + 2, 0.5}};
    const TensorType image = TensorType{Bfloat16, {4, 9, 6, 8}}.in(Layout::ChannelsLast), row{Float32, {9, 1, 1}};
    check_compiles(program, image, {image, TensorType{Bfloat16, {4, 9, 1, 1}}.in(Layout::ChannelsLast), row}, Bfloat16);
    check_compiles(program, image, {image, TensorType{Float32, {4, 1, 1, 1}}, TensorType{Bfloat16, {1, 1, 6, 8}}},
                   Float32);
  }
}

TEST_CASE("regions: rows of samples are shared out among blocks that have one sample each") {
  using enum DataType;
  for (const Shape& shape :
       {Shape{64, 112, 112, 32}, Shape{64, 7, 7, 1152}, Shape{300, 14, 14, 40}, Shape{2, 1, 2, 6}}) {
    const TensorType space{Bfloat16, shape};
    const RegionProgram program{1, {}, {}, {{0, 1, 2}}};
    const RegionWalk walk(space, {space}, program);
    const RegionSource source = region_source(program, walk, {Bfloat16}, {});
    REQUIRE(source.by_sample);
    const RegionColumns columns(walk, source, 132);
    INFO(to_string(shape), ": ", columns.chunks, " chunks, ", columns.slices, " slices of ", columns.across);
    CHECK(columns.samples == shape[0]);
    CHECK(columns.rows == shape[1] * shape[2]);
    CHECK(columns.across * columns.slices >= shape[3] / source.width);
    CHECK((columns.chunks == 1 || columns.samples * columns.chunks * columns.slices <= 2 * 132));
    if (shape[0] == 64) CHECK(columns.samples * columns.chunks * columns.slices >= 3 * 132 / 2);
  }
}

TEST_CASE("regions: rows are shared out among blocks without rest") {
  using enum DataType;
  for (const int64_t channels : {2, 3, 8, 40, 96, 144, 384, 2048, 3072, 4097}) {
    for (const int64_t rows : {1, 31, 1000, 802816}) {
      const TensorType space{Bfloat16, {rows, channels}};
      const RegionProgram program{1, {}, {}, {{0, 1}}};
      const RegionWalk walk(space, {space}, program);
      const RegionSource source = region_source(program, walk, {Bfloat16}, {});
      REQUIRE(source.by_columns);
      const RegionColumns columns(walk, source, 132);
      INFO(channels, " × ", rows, ": ", columns.slices, " slices of ", columns.across);
      CHECK(columns.rows == rows);
      CHECK(columns.across <= RegionSource::kThreads);
      CHECK(columns.across * columns.slices >= channels / source.width);
      CHECK((columns.slices - 1) * columns.across < channels / source.width);
      CHECK(columns.chunks <= rows);
      CHECK(columns.chunks * columns.slices <= std::max(2 * 132, columns.slices));
    }
  }
}

TEST_CASE("elementwise operators: the kernel of each, for each type, compiles") {
  const std::map<std::string, std::string> sources = sources_of_operators();
  REQUIRE(sources.size() > 200);
  // All begin with the same functions. What follows is compiled many at a time, each in a namespace.
  const std::string_view last = "\n__device__ void narrow(W x, Bfloat16& to)", external = "extern \"C\" ";
  std::string text, names;
  size_t count = 0;
  for (const auto& [name, source] : sources) {
    INFO(name, "\n", source);
    const size_t begin = source.find('\n', source.find(last) + 1) + 1, kernel = source.find(external, begin);
    REQUIRE(kernel != source.npos);
    constexpr size_t kTogether = 64;
    if (text.empty()) text = source.substr(0, begin);
    text += fmt::format("namespace kernel_{} {{\n{}{}}}\n", count, source.substr(begin, kernel - begin),
                        source.substr(kernel + external.size()));
    names += fmt::format("kernel_{}: {}\n", count, name);
    if (++count % kTogether != 0 && count < sources.size()) continue;
    INFO(names);
    CHECK_NOTHROW(compile_cuda(std::exchange(text, ""), "sm_90"));
    names.clear();
  }
}

TEST_CASE("elementwise operators: each has a kernel for GPUs") {
  for (const Op& op : builtin_ops().all()) {
    INFO(op.qualified_name());
    if (op.element) CHECK(op.cuda);
  }
}

TEST_CASE("elementwise operators: one source is for all shapes that are walked through alike, and for all numbers") {
  using enum DataType;
  const auto source = [](const char* name, const std::vector<Shape>& shapes, const Attributes& attributes = {}) {
    std::vector<TensorType> inputs;
    for (const Shape& shape : shapes) inputs.push_back({Float32, shape});
    return source_of(builtin_ops().get(name), inputs, Bfloat16, attributes);
  };
  CHECK(source("Mul", {{3, 5}, {3, 5}}) == source("Mul", {{2, 64, 7, 7}, {2, 64, 7, 7}}));
  CHECK(source("Mul", {{64, 40}, {40}}) == source("Mul", {{9, 2, 128}, {128}}));
  CHECK(source("Mul", {{64, 40}, {40}}) != source("Mul", {{64, 40}, {64, 1}}));
  CHECK(source("Elu", {{8}}, {{"alpha", 0.5}}) == source("Elu", {{7, 2}}, {{"alpha", 0.25}}));
  CHECK(source("Gelu", {{8}}) != source("Gelu", {{8}}, {{"approximate", std::string("tanh")}}));
}

TEST_CASE("a kernel that does not compile is an error with the compiler's words") {
  CHECK_THROWS_WITH_AS(compile_cuda("__global__ void region() { undefined_name(); }", "sm_90"),
                       doctest::Contains("undefined_name"), RunError);
}

}  // namespace region_cuda_test
