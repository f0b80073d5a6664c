// SPDX-License-Identifier: Apache-2.0

// MatMul, ONNX's: products of matrices in the last two axes, with the other axes broadcast; and arbalest.BatchMatMul,
// the same with transposed operands, which gradients are made of.

#include "ops/product/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/definition.h"
#include "ops/product/gemm.h"
#include "ops/product/matrix_product.h"

namespace arbalest {
namespace {

// A matrix's steps along the axes of the broadcast batch.
std::vector<int64_t> matrix_steps(const Shape& matrices, const Shape& batch) {
  const Shape own(matrices.begin(), matrices.end() - 2);
  std::vector<int64_t> steps(batch.size(), 0);
  int64_t step = matrices[matrices.size() - 2] * matrices.back();
  for (size_t i = own.size(); i-- > 0;) {
    steps[batch.size() - own.size() + i] = own[i] == 1 ? 0 : step;
    step *= own[i];
  }
  return steps;
}

Shape as_matrices(const Shape& shape, bool left) {
  if (shape.size() != 1) return shape;
  return left ? Shape{1, shape[0]} : Shape{shape[0], 1};
}

bool flag(const Node& node, std::string_view name) {
  return node.op->attribute_spec(name) && int_attribute(node, name) != 0;
}

}  // namespace

BatchedProduct::BatchedProduct(const Node& node, const TensorType& a, const TensorType& b)
    : trans_a(flag(node, "transA")), trans_b(flag(node, "transB")) {
  const Shape left = as_matrices(a.shape, true), right = as_matrices(b.shape, false);
  const auto extent = [](const Shape& shape, bool last) { return shape[shape.size() - (last ? 1 : 2)]; };
  rows = extent(left, trans_a);
  depth = extent(left, !trans_a);
  columns = extent(right, !trans_b);
  if (extent(right, trans_b) != depth) {
    fail(node, fmt::format("input 'A' is {} and input 'B' is {}: {} columns meet {} rows", to_string(a), to_string(b),
                           depth, extent(right, trans_b)));
  }
  batch.assign(std::max(left.size(), right.size()) - 2, 1);
  for (const Shape* shape : {&left, &right}) {
    const size_t axes = shape->size() - 2;
    for (size_t i = 0; i < axes; ++i) {
      int64_t& wide = batch[batch.size() - axes + i];
      if ((*shape)[i] == 1 || (*shape)[i] == wide) continue;
      if (wide != 1) {
        fail(node, fmt::format("input 'A' is {} and input 'B' is {}: {} and {} matrices along an axis do not broadcast",
                               to_string(a), to_string(b), wide, (*shape)[i]));
      }
      wide = (*shape)[i];
    }
  }
  a_steps = matrix_steps(left, batch);
  b_steps = matrix_steps(right, batch);
}

Shape BatchedProduct::output_shape(const TensorType& a, const TensorType& b) const {
  Shape shape = batch;
  if (a.shape.size() > 1) shape.push_back(rows);
  if (b.shape.size() > 1) shape.push_back(columns);
  return shape;
}

Strided BatchedProduct::walk() const {
  Shape all = batch;
  all.insert(all.end(), {rows, columns});
  return {batch, {matrix_steps(all, batch), a_steps, b_steps}};
}

void BatchedProduct::join_rows() {
  const Strided all = walk();
  const bool one = all.rank == 1 && all.stride[2][0] == 0 && !trans_a && all.stride[1][0] == rows * depth;
  if (!one) return;
  rows *= all.extent[0];
  batch.clear();
  a_steps.clear();
  b_steps.clear();
}

namespace {

void infer_matmul(InferContext& context) {
  using In = GemmInput;
  const TensorType &a = floating_input(context, In::A), &b = floating_input(context, In::B);
  for (const size_t i : {size_t{0}, size_t{1}}) {
    if (context.input(i).shape.empty()) context.fail(fmt::format("{} is a scalar", input_name(context, i)));
  }
  if (b.dtype != a.dtype) expect_input(context, In::B, {a.dtype, b.shape}, "the element type of 'A'");
  if (std::max(a.shape.size(), b.shape.size()) > Strided::kMaxRank) {
    context.fail(
        fmt::format("inputs are {} and {}; expected at most {} axes", to_string(a), to_string(b), Strided::kMaxRank));
  }
  context.set_output(0, {a.dtype, BatchedProduct(context.node(), a, b).output_shape(a, b)});
}

#ifdef ARBALEST_ONEDNN
onednn::Desc batch_desc(const BatchedProduct& p, const std::vector<int64_t>& steps, int64_t rows, int64_t columns,
                        bool transposed, DataType type) {
  onednn::Dims dims, strides;
  for (size_t i = 0; i < p.batch.size(); ++i) {
    dims.push_back(steps[i] == 0 ? 1 : p.batch[i]);
    strides.push_back(std::max<int64_t>(steps[i], 1));
  }
  dims.insert(dims.end(), {rows, columns});
  strides.insert(strides.end(), {transposed ? 1 : columns, transposed ? rows : 1});
  return {dims, onednn::type_of(type), strides};
}
#endif

std::unique_ptr<Kernel> matmul_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = GemmInput;
  BatchedProduct p(request.node, request.inputs[In::A], request.inputs[In::B]);
  p.join_rows();
#ifdef ARBALEST_ONEDNN
  const DataType type = request.inputs[In::A].dtype;
  if (onednn::supported(type) && element_count(p.batch) * p.rows * p.depth * p.columns > 0) {
    Shape all = p.batch;
    all.insert(all.end(), {p.rows, p.columns});
    if (auto kernel = onednn_matmul(batch_desc(p, p.a_steps, p.rows, p.depth, p.trans_a, type),
                                    batch_desc(p, p.b_steps, p.depth, p.columns, p.trans_b, type),
                                    batch_desc(p, matrix_steps(all, p.batch), p.rows, p.columns, false, type), 0, 1, 0,
                                    request.deterministic)) {
      return kernel;
    }
  }
#endif
  const Multiplication m{.rows = p.rows,
                         .depth = p.depth,
                         .columns = p.columns,
                         .a_row = p.trans_a ? 1 : p.depth,
                         .a_depth = p.trans_a ? p.rows : 1,
                         .b_depth = p.trans_b ? 1 : p.columns,
                         .b_column = p.trans_b ? p.depth : 1};
  return make_kernel([p, m](const KernelContext& context) {
    const int64_t count = element_count(p.batch);
    for (int64_t i = 0; i < count; ++i) {
      int64_t a = 0, b = 0, rest = i;
      for (size_t axis = p.batch.size(); axis-- > 0;) {
        a += rest % p.batch[axis] * p.a_steps[axis];
        b += rest % p.batch[axis] * p.b_steps[axis];
        rest /= p.batch[axis];
      }
      multiply<T, T>(m, input<T>(context, In::A) + a, input<T>(context, In::B) + b, nullptr,
                     output<T>(context, 0) + i * p.rows * p.columns);
    }
  });
}

ValueId reshaped(GradContext& c, ValueId value, const Shape& shape, std::string_view label) {
  if (c.type(value).shape == shape) return value;
  return c.add("Reshape", label, {value}, 1, {{"shape", shape}, {"allowzero", int64_t{1}}})[0];
}

// Gradient of `operand`, from `gradient` over the broadcast batch: summed over broadcast axes and reshaped. `matrices`:
// the operand's shape with a row or a column for a vector.
ValueId batch_summed(GradContext& c, ValueId gradient, ValueId operand, const Shape& matrices,
                     const std::string& label) {
  if (c.type(gradient).shape != matrices) {
    const ValueId like = reshaped(c, operand, matrices, label + "_like");
    gradient = c.add("arbalest.SumTo", label + "_sum", {gradient, like}, 1)[0];
  }
  return reshaped(c, gradient, c.type(operand).shape, label + "_shape");
}

// dA = dY op(B)ᵀ and dB = op(A)ᵀ dY; transposed, op(B) dYᵀ and dYᵀ op(A).
void grad_matmul(GradContext& c) {
  using In = GemmInput;
  const ValueId a = c.input(In::A), b = c.input(In::B);
  const TensorType a_type = c.type(a), b_type = c.type(b);
  const BatchedProduct p(c.node(), a_type, b_type);
  const int64_t trans_a = p.trans_a, trans_b = p.trans_b;
  const Shape left = as_matrices(a_type.shape, true), right = as_matrices(b_type.shape, false);
  Shape full = p.batch;
  full.insert(full.end(), {p.rows, p.columns});
  const ValueId dy = reshaped(c, c.output_gradient(0), full, "grad_matrices");
  const auto product = [&](std::string_view label, std::vector<ValueId> operands, int64_t left, int64_t right) {
    Attributes flags;
    if (left) flags.set("transA", left);
    if (right) flags.set("transB", right);
    return c.add("arbalest.BatchMatMul", label, std::move(operands), 1, std::move(flags))[0];
  };
  if (c.needs_gradient(In::A)) {
    const ValueId others = reshaped(c, b, right, "b_matrices");
    const ValueId da =
        trans_a ? product("grad_a", {others, dy}, trans_b, 1) : product("grad_a", {dy, others}, 0, 1 - trans_b);
    c.set_input_gradient(In::A, batch_summed(c, da, a, left, "grad_a"));
  }
  if (!c.needs_gradient(In::B)) return;
  if (right.size() == 2 && left.size() >= 2 && (!trans_a || left.size() == 2)) {
    // One B for all matrices, as in a linear layer: all their rows are one matrix.
    const int64_t rows = element_count(p.batch) * p.rows;
    const ValueId all = trans_a ? a : reshaped(c, a, {rows, p.depth}, "a_rows"),
                  gradients = reshaped(c, dy, {rows, p.columns}, "grad_rows");
    Attributes flags;
    if (trans_a) flags.set("transA", trans_a);
    if (trans_b) flags.set("transB", trans_b);
    const ValueId db = c.add("arbalest.GemmGradB", "grad_b", {all, gradients}, 1, std::move(flags))[0];
    c.set_input_gradient(In::B, reshaped(c, db, b_type.shape, "grad_b_shape"));
    return;
  }
  const ValueId others = reshaped(c, a, left, "a_matrices");
  const ValueId db =
      trans_b ? product("grad_b", {dy, others}, 1, trans_a) : product("grad_b", {others, dy}, 1 - trans_a, 0);
  c.set_input_gradient(In::B, batch_summed(c, db, b, right, "grad_b"));
}

Cost matmul_cost(const Graph& graph, const Node& node) {
  const BatchedProduct p(node, input_type(graph, node, GemmInput::A), input_type(graph, node, GemmInput::B));
  return {2 * double(output_type(graph, node, 0).elements()) * double(p.depth), operand_bytes(graph, node)};
}

std::vector<Sample> product_samples(const std::vector<std::pair<Shape, Shape>>& shapes, Attributes attributes,
                                    double scale) {
  std::vector<Sample> samples;
  for (const auto& [a, b] : shapes) {
    std::string flags;
    for (const NamedAttribute& attribute : attributes) flags += ", " + attribute.name;
    samples.push_back({.name = to_string(a) + " and " + to_string(b) + flags,
                       .inputs = {{{DataType::Float32, a}, -scale, scale}, {{DataType::Float32, b}}},
                       .attributes = attributes});
  }
  return samples;
}

std::vector<Sample> matmul_samples() {
  return product_samples({{{7, 5}, {5, 9}},
                          {{4}, {4}},
                          {{5}, {3, 5, 2}},
                          {{2, 3, 4}, {4}},
                          {{1, 1}, {1, 1}},
                          {{2, 8, 16}, {16, 24}},
                          {{3, 4, 5}, {3, 5, 6}},
                          {{2, 3, 8, 4}, {2, 3, 4, 8}},
                          {{2, 1, 3, 5}, {4, 5, 2}},
                          {{3, 2, 7, 3}, {1, 2, 3, 5}},
                          {{2, 1, 4, 3}, {1, 3, 3, 2}},
                          {{6, 5}, {2, 5, 3}},
                          {{4, 12, 33, 16}, {4, 12, 16, 33}},
                          {{6, 9, 16}, {6, 16, 24}}},
                         {}, 1);
}

std::vector<Sample> batch_matmul_samples() {
  const Attributes a = {{"transA", int64_t{1}}}, b = {{"transB", int64_t{1}}},
                   both = {{"transA", int64_t{1}}, {"transB", int64_t{1}}};
  std::vector<Sample> all;
  const auto add = [&](const std::vector<std::pair<Shape, Shape>>& shapes, const Attributes& flags) {
    for (Sample& sample : product_samples(shapes, flags, 1)) all.push_back(std::move(sample));
  };
  add({{{3, 4, 6}, {3, 5, 6}},
       {{2, 1, 3, 8}, {4, 5, 8}},
       {{5, 4, 3}, {2, 3}},
       {{4, 3}, {5, 3}},
       {{3}, {2, 5, 3}},
       {{3, 20, 24}, {3, 41, 24}}},
      b);
  add({{{3, 6, 4}, {3, 6, 5}},
       {{2, 4, 8, 3}, {1, 4, 8, 5}},
       {{6, 4}, {6, 5}},
       {{2, 6, 4}, {6, 5}},
       {{6, 4}, {6}},
       {{5, 33, 16}, {33, 8}}},
      a);
  add({{{6, 4}, {5, 6}}, {{3, 6, 4}, {3, 5, 6}}, {{3, 6, 4}, {5, 6}}, {{3, 24, 16}, {3, 11, 24}}}, both);
  return all;
}

}  // namespace

void register_product_matmul(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "MatMul",
                .doc = "products of the matrices in the last two axes, the other axes broadcast",
                .inputs = {lowered("A").as(OperandSpec::Weight), lowered("B").as(OperandSpec::Weight)},
                .outputs = {{.name = "Y", .lowered = true}},
                .infer = infer_matmul,
                .grad = grad_matmul,
                .cost = matmul_cost,
                .samples = matmul_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return matmul_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "BatchMatMul",
                .doc = "as MatMul, with the matrices of either operand transposed",
                .inputs = {{.name = "A", .lowered = true}, {.name = "B", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = {int_spec("transA", 0, "1: A's matrices are transposed"),
                               int_spec("transB", 0, "1: B's matrices are transposed")},
                .internal = true,
                .infer = infer_matmul,
                .grad = grad_matmul,
                .cost = matmul_cost,
                .samples = batch_matmul_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return matmul_cpu(r, t); })});
}

}  // namespace arbalest
