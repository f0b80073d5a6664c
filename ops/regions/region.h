// SPDX-License-Identifier: Apache-2.0
#pragma once
// A region: elementwise operators that are computed together, element by element, so that what one hands to the next is
// never stored. On GPUs an elementwise operator by itself is a region of one step. All of its values have one shape, to
// which the inputs broadcast. Sums of steps over rows, which are all axes but the innermost in memory, are made on the
// way: over all rows, such as gradients of biases, or over those of each sample, such as means of an image's pixels.
// passes/fuse/regions.cpp finds regions. Inputs may be parts of larger tensors, and results parts of larger outputs
// (passes/fuse/region_moves.cpp).

#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"

namespace arbalest {

// One operator of a region. Operands are numbers: those below the count of inputs are the region's inputs, the others
// the steps before this one, in their order.
struct RegionStep {
  const Op* op = nullptr;  // with Op::element
  std::vector<size_t> operands;
  std::array<double, 2> numbers = {};  // alpha and beta of its formula
};

// scale · (the sum over rows) of a step or an input, numbered as operands are.
struct RegionSum {
  size_t of = 0;
  double scale = 1;
  // The number of axes of its shape. 1: (C), over all rows. More: a sum for each sample, that is for each place along
  // the first axis, over the axes between it and the innermost. 2: (N, C), row-major. As many as the space has: with
  // axes of 1 between, laid out as the space.
  size_t rank = 1;
  bool by_sample() const { return rank > 1; }
};

// An input whose elements are found by strides, whatever its own shape is.
struct RegionView {
  size_t input = 0;
  int64_t first = 0;   // element of its memory
  Shape strides = {};  // along each axis of the region's space, in elements; 0: it stands still
};

// An output that has results one after the other along an axis.
struct RegionConcat {
  size_t output = 0, axis = 0, parts = 2;
};

struct RegionProgram {
  static constexpr size_t kMostInputs = 16, kMostOutputs = 8, kMostSteps = 48;
  size_t inputs = 0;
  std::vector<RegionStep> steps;
  std::vector<size_t> results;             // the steps that outputs have the results of, at most kMostOutputs
  std::vector<RegionSum> sums;             // the outputs after these
  std::vector<RegionView> views = {};      // of different inputs
  std::vector<RegionConcat> concats = {};  // in the order of outputs; the others have a result each

  bool sums_by_sample() const;
  // The output that each result is in, and its part there, from 0.
  struct Target {
    size_t output = 0, part = 0;
    const RegionConcat* concat = nullptr;  // null: the output is the result
  };
  std::vector<Target> targets() const;
  size_t result_outputs() const;                  // those before the sums
  const RegionView* view_of(size_t input) const;  // nullptr: the input is read as it is
};

// Whether a region may compute what the node does. Its operands are then as many of the inputs as the operator's
// function has arguments.
bool is_region_step(const Graph& graph, const Node& node);
// The same by types of elements, those of inputs and of output 0; Token: an input is left out.
bool is_region_step(const Op& op, const std::vector<DataType>& inputs, DataType output);

// A region of that node alone.
RegionProgram one_step(const Node& node);

// The type of output `index`, which is not a sum.
TensorType result_type(const TensorType& space, const RegionProgram& program, size_t index);

// The type of such a sum, in Float32.
TensorType sum_type(const TensorType& space, const RegionSum& sum);

// The attributes of a node of arbalest.Region whose results have the shape and the layout of `space`. `outputs`: the
// types of elements of the results and the sums, each Float32 or Bfloat16. With sums the innermost axis has two
// elements at least, and with sums by sample so have the first one and those between.
Attributes region_attributes(const RegionProgram& program, const TensorType& space,
                             const std::vector<DataType>& outputs);
// The program of such a node. Throws GraphError if its attributes do not state one.
RegionProgram region_program(const Node& node, const OpRegistry& registry);

// How inputs and results are walked through: the axes of the region's space in the order in which it lies, outermost
// first, merged where one stride of each serves both. Operands are numbered: the inputs, then the results.
struct RegionWalk {
  std::vector<int64_t> extents;
  std::vector<std::vector<int64_t>> strides;  // by operand, in elements; 0 where it stands still
  std::vector<int64_t> first;                 // by operand: the element where it begins
  int64_t count = 1;                          // of elements

  // `inputs`: at least as many as the program has.
  RegionWalk(const TensorType& space, const std::vector<TensorType>& inputs, const RegionProgram& program);
  bool is_whole(size_t operand) const;  // it lies as the space does, without gaps
  bool is_row(size_t operand) const;    // it moves along the innermost axis alone, there without gaps
  // The bytes that the address of an element which begins a pack of `width` is a multiple of.
  int64_t alignment(size_t operand, int width, DataType type) const;
};

// The source of a CUDA kernel `region`, and how it is called.
struct RegionSource {
  std::string text;
  int width = 1;  // elements that a thread takes at a time
  // Operands that are not whole: the walk's strides are passed for them, in this order.
  std::vector<size_t> placed = {};
  std::vector<float> numbers = {};  // two a step; empty: the kernel has no parameter for them
  // Threads keep to a pack of channels and walk down rows: for sums, and where inputs are the same for all rows.
  bool by_columns = false;
  bool by_sample = false;      // and each chunk of rows is of one place along the walk's first axis
  int unroll = 1;              // rows that a thread reads at a time
  std::vector<size_t> summed;  // what partial sums are made of, numbered as operands are
  static constexpr int kThreads = 256;
};

// How the rows of such a kernel are shared out among blocks.
struct RegionColumns {
  int64_t rows = 0, channels = 0;  // rows of a sample
  int samples = 1;                 // 1: all rows are one's
  int across = 1;                  // packs of a slice, a thread each in each of a block's rows
  int chunks = 1, slices = 1;      // of a sample: a block each

  RegionColumns(const RegionWalk& walk, const RegionSource& source, int multiprocessors);
};

// The functions that formulas call (ops/math/elementwise_functions.h), for the source of kernels.
extern const std::string_view kFormulaText;

// For NVRTC: it includes nothing. Elements are Float32, Bfloat16 or, of inputs, Bool. `inputs`, `results`: their types,
// one by one.
RegionSource region_source(const RegionProgram& program, const RegionWalk& walk, const std::vector<DataType>& inputs,
                           const std::vector<DataType>& results);

}  // namespace arbalest
