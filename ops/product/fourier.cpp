// SPDX-License-Identifier: Apache-2.0

// DFT and STFT, ONNX's: discrete Fourier transforms along an axis, and of windows of a signal. Both become products
// with constant matrices of cosines and sines. Complex numbers have an axis of their real and imaginary parts, the last
// one.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "graph/constants.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

struct StftInput {
  enum : size_t { Signal, FrameStep, Window, FrameLength };
};

// More numbers of a matrix than this, 256 MiB of floats, are refused: a fast transform would do with a fraction.
constexpr int64_t kMostFourierNumbers = int64_t{1} << 26;

// A transform of `taken` numbers, as many of a signal of `length` as there are, to `bins` numbers.
struct Transform {
  int64_t length = 0, taken = 0, bins = 0;
  int64_t parts_in = 1, parts_out = 2;   // 1: real numbers, 2: complex ones
  bool inverse = false, halved = false;  // halved: a real signal's spectrum, whose other half follows by symmetry
};

// The matrix (taken · parts_in, bins · parts_out). Angles are multiples of a turn's part, which keeps them small.
std::vector<double> fourier_matrix(const Transform& t) {
  std::vector<double> cosines(size_t(t.length)), sines(size_t(t.length)), matrix;
  for (int64_t i = 0; i < t.length; ++i) {
    const double angle = 2 * std::numbers::pi * double(i) / double(t.length);
    cosines[size_t(i)] = std::cos(angle);
    sines[size_t(i)] = t.inverse ? std::sin(angle) : -std::sin(angle);
  }
  matrix.reserve(size_t(t.taken * t.parts_in * t.bins * t.parts_out));
  for (int64_t n = 0; n < t.taken; ++n) {
    const bool twice = t.inverse && t.halved && n > 0 && 2 * n != t.length;  // stands for its mirror image, too
    const double scale = t.inverse ? (twice ? 2.0 : 1.0) / double(t.length) : 1;
    for (int64_t part = 0; part < t.parts_in; ++part) {
      for (int64_t k = 0; k < t.bins; ++k) {
        const auto turn = size_t(n * k % t.length);
        const double real = part == 0 ? cosines[turn] : -sines[turn],
                     imaginary = part == 0 ? sines[turn] : cosines[turn];
        matrix.push_back(scale * real);
        if (t.parts_out == 2) matrix.push_back(scale * imaginary);
      }
    }
  }
  return matrix;
}

void check_transform(const Node& node, const Transform& t) {
  if (t.length < 1 || t.length > kMostFourierNumbers)
    fail(node, fmt::format("the transform has a length of {}; expected 1 to {}", t.length, kMostFourierNumbers));
  const int64_t rows = t.taken * t.parts_in, columns = t.bins * t.parts_out;
  if (rows <= kMostFourierNumbers / columns) return;
  fail(node, fmt::format("the transform's matrix would be {} by {}; expected at most {} numbers", rows, columns,
                         kMostFourierNumbers));
}

// 1 for real numbers and 2 for complex ones, which the last axis says.
int64_t parts_of(const Node& node, const TensorType& x) {
  if (x.shape.back() == 1 || x.shape.back() == 2) return x.shape.back();
  fail(node, fmt::format("input '{}' is {}; expected a last axis of 1, real numbers, or 2, complex ones",
                         node.op->inputs[0].name, to_string(x)));
}

// Opset 20 has another axis by default, which is the same one of three.
size_t dft_axis(const Node& node, const TensorType& x) {
  const auto rank = int64_t(x.shape.size());
  if (rank < 3) fail(node, fmt::format("input 'input' is {}; expected at least three axes", to_string(x)));
  if (!node.attributes.find("axis") && rank > 3)
    fail(node, fmt::format("lacks 'axis' for {}; its default is 1 before ONNX's opset 20, and later -2", to_string(x)));
  const int64_t axis = int_attribute(node, "axis"), from_front = axis < 0 ? axis + rank : axis;
  if (from_front < 0 || from_front > rank - 2) {
    fail(node,
         fmt::format("'axis' is {}; expected {} to {}, any but the last of {}", axis, -rank, rank - 2, to_string(x)));
  }
  return size_t(from_front);
}

// `node`: with its operands as attributes.
Transform dft_of(const Node& node, const TensorType& x) {
  const int64_t elements = x.shape[dft_axis(node, x)], parts = parts_of(node, x);
  Transform t{.inverse = flag_attribute(node, "inverse"), .halved = flag_attribute(node, "onesided")};
  const bool real_result = t.inverse && t.halved;
  t.length = int_attribute(node, "dft_length");
  if (!node.attributes.find("dft_length")) t.length = real_result ? 2 * (elements - 1) : elements;
  t.bins = t.halved && !t.inverse ? t.length / 2 + 1 : t.length;
  t.taken = std::min(elements, real_result ? t.length / 2 + 1 : t.length);
  t.parts_in = parts;
  t.parts_out = real_result ? 1 : 2;
  if (t.halved && parts != (t.inverse ? 2 : 1)) {
    fail(node, fmt::format("input 'input' is {}; expected {} numbers with onesided = 1 and inverse = {}", to_string(x),
                           t.inverse ? "complex" : "real", int(t.inverse)));
  }
  check_transform(node, t);
  return t;
}

Node with_operands(const InferContext& context) {
  Node node = context.node();
  take_operands(context.graph(), node);
  return node;
}

void infer_dft(InferContext& context) {
  TensorType x = floating_input(context, 0);
  const Node node = with_operands(context);
  const size_t axis = dft_axis(node, x);
  const Transform t = dft_of(node, x);
  x.shape[axis] = t.bins;
  x.shape.back() = t.parts_out;
  context.set_output(0, x);
}

ValueId fourier_node(ExpandContext& context, const char* op, const char* label, std::vector<ValueId> inputs,
                     Attributes attributes = {}) {
  return context.add(op, label, std::move(inputs), 1, std::move(attributes))[0];
}

void expand_dft(ExpandContext& context) {
  ValueId x = context.input(0);
  const TensorType type = context.type(x);
  const Transform t = dft_of(context.node(), type);
  const size_t rank = type.shape.size(), axis = dft_axis(context.node(), type);
  const auto last = int64_t(rank) - 2;
  Ints swap(rank), rows(rank - 2, 0);
  for (size_t i = 0; i < rank; ++i) swap[i] = int64_t(i);
  std::swap(swap[axis], swap[size_t(last)]);
  const auto swapped = [&](const char* label, ValueId value) {
    return int64_t(axis) == last ? value : fourier_node(context, "Transpose", label, {value}, {{"perm", swap}});
  };
  x = swapped("last", x);
  if (t.taken < type.shape[axis]) {
    x = fourier_node(context, "Slice", "taken", {x},
                     {{"starts", Ints{0}}, {"ends", Ints{t.taken}}, {"axes", Ints{last}}});
  }
  rows.push_back(t.taken * t.parts_in);
  x = fourier_node(context, "Reshape", "rows", {x}, {{"shape", rows}});
  const ValueId numbers = context.constant("turns", type.dtype, fourier_matrix(t));
  const Ints extents = {t.taken * t.parts_in, t.bins * t.parts_out};
  const ValueId matrix = fourier_node(context, "Reshape", "matrix", {numbers}, {{"shape", extents}});
  x = fourier_node(context, "MatMul", "product", {x, matrix});
  rows.back() = t.bins;
  rows.push_back(t.parts_out);
  x = fourier_node(context, "Reshape", "bins", {x}, {{"shape", rows}});
  context.replace_output(0, swapped("", x));
}

// The frames of a signal, and the transform of each.
struct Frames {
  int64_t count, step;
  Transform each;
};

// `node`: with its operands as attributes.
Frames frames_of(const Node& node, const TensorType& x, const Shape* window) {
  const int64_t parts = x.shape.size() == 3 ? parts_of(node, x) : 1, samples = x.shape[1];
  int64_t length = int_attribute(node, "frame_length");
  const bool stated = node.attributes.find("frame_length");
  if (!stated && !window) fail(node, "lacks 'window' and 'frame_length'; expected one of them");
  if (window && (window->size() != 1 || (stated && (*window)[0] != length))) {
    fail(node, fmt::format("input 'window' is {}; expected {} numbers", to_string(*window, '[', ']'),
                           stated ? std::to_string(length) : "a list of"));
  }
  if (!stated) length = (*window)[0];
  const int64_t step = int_attribute_from(node, "frame_step", 1);
  if (length < 1 || length > samples)
    fail(node, fmt::format("frames have {} numbers; expected 1 to {}, those of 'signal'", length, samples));
  const bool halved = flag_attribute(node, "onesided");
  if (halved && parts == 2)
    fail(node, fmt::format("input 'signal' is {}; expected real numbers with onesided = 1", to_string(x)));
  const Transform each{.length = length,
                       .taken = length,
                       .bins = halved ? length / 2 + 1 : length,
                       .parts_in = parts,
                       .parts_out = 2,
                       .inverse = false,
                       .halved = halved};
  check_transform(node, each);
  const Frames frames{1 + (samples - length) / step, step, each};
  if (frames.count > kMostFourierNumbers / length)
    fail(node, fmt::format("{} frames of {} numbers are too many", frames.count, length));
  return frames;
}

void infer_stft(InferContext& context) {
  using In = StftInput;
  const TensorType& x = floating_input(context, In::Signal, {2, 3});
  const bool windowed = context.has_input(In::Window);
  if (windowed && context.input(In::Window).dtype != x.dtype)
    expect_input(context, In::Window, {x.dtype, context.input(In::Window).shape}, "the element type of 'signal'");
  const Frames frames = frames_of(with_operands(context), x, windowed ? &context.input(In::Window).shape : nullptr);
  context.set_output(0, {x.dtype, {x.shape[0], frames.count, frames.each.bins, 2}});
}

void expand_stft(ExpandContext& context) {
  const ValueId x = context.input(StftInput::Signal), window = context.node().input(StftInput::Window);
  const TensorType type = context.type(x);
  const Shape extents = window == kNone ? Shape{} : context.type(window).shape;
  const auto [count, step, t] = frames_of(context.node(), type, window == kNone ? nullptr : &extents);
  std::vector<double> places;
  for (int64_t frame = 0; frame < count; ++frame) {
    for (int64_t i = 0; i < t.length; ++i) places.push_back(double(frame * step + i));
  }
  const auto reshaped = [&](const char* label, ValueId value, const Ints& shape) {
    return fourier_node(context, "Reshape", label, {value}, {{"shape", shape}});
  };
  const ValueId indices = reshaped("indices", context.constant("places", DataType::Int64, places), {count, t.length});
  const ValueId taken = fourier_node(context, "Gather", "taken", {x, indices}, {{"axis", int64_t{1}}});
  const ValueId rows = reshaped("frames", taken, {0, 0, t.length * t.parts_in});
  const ValueId numbers = context.constant("turns", type.dtype, fourier_matrix(t));
  const int64_t columns = t.bins * t.parts_out;
  ValueId matrix = reshaped("matrix", numbers, {t.length, t.parts_in * columns});
  if (window != kNone) {  // a row of the matrix for each of its numbers
    matrix = fourier_node(context, "Mul", "weighted", {matrix, reshaped("window", window, {t.length, 1})});
  }
  if (t.parts_in == 2) matrix = reshaped("parts", matrix, {t.length * t.parts_in, columns});
  const ValueId product = fourier_node(context, "MatMul", "product", {rows, matrix});
  context.replace_output(0, reshaped("", product, {0, 0, t.bins, t.parts_out}));
}

}  // namespace

void register_product_fourier(OpRegistry& registry) {
  const auto stated = [](const char* name) {
    return OperandSpec{.name = name, .arity = OperandSpec::Optional, .constant = true};
  };
  registry.add({.domain = "",
                .name = "DFT",
                .doc = "the discrete Fourier transform along an axis, or its inverse, as a product",
                .inputs = {{.name = "input"}, stated("dft_length"), stated("axis")},
                .outputs = {{.name = "output"}},
                .attributes = {int_spec("dft_length", 0, "of the signal, cut or filled with zeros; 0: as it is"),
                               int_spec("axis", -2, "of the signal; the last one has real and imaginary parts"),
                               int_spec("inverse", 0, "1: the inverse transform"),
                               int_spec("onesided", 0, "1: of real signals, whose spectrum is symmetric")},
                .infer = infer_dft,
                .expand = expand_dft});
  registry.add({.domain = "",
                .name = "STFT",
                .doc = "discrete Fourier transforms of a signal's frames, as a product",
                .inputs = {{.name = "signal"},
                           stated("frame_step"),
                           {.name = "window", .arity = OperandSpec::Optional},
                           stated("frame_length")},
                .outputs = {{.name = "output"}},
                .attributes = {required_spec("frame_step", AttributeKind::Int, "from one frame to the next"),
                               int_spec("frame_length", 0, "0: the window's"),
                               int_spec("onesided", 1, "1: the first half of the spectrum, of real signals")},
                .infer = infer_stft,
                .expand = expand_stft});
}

}  // namespace arbalest
