// SPDX-License-Identifier: Apache-2.0

// Gemm, ONNX's: Y = alpha · op(A) op(B) + beta · C, with op the transposition if asked for.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/fused/decomposed.h"
#include "ops/product/gemm.h"
#include "ops/product/matrix_product.h"

namespace arbalest {
namespace {

// Extents of op(A) (rows × depth) and op(B) (depth × columns).
struct GemmProduct {
  int64_t rows, depth, columns;
  bool trans_a, trans_b;
};

GemmProduct product_of(const Node& node, const TensorType& a, const TensorType& b) {
  const bool trans_a = flag_attribute(node, "transA"), trans_b = flag_attribute(node, "transB");
  return {a.shape[trans_a ? 1 : 0], a.shape[trans_a ? 0 : 1], b.shape[trans_b ? 0 : 1], trans_a, trans_b};
}

std::unique_ptr<Kernel> gemm_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = GemmInput;
  const TensorType &a = request.inputs[In::A], &b = request.inputs[In::B];
  const GemmProduct p = product_of(request.node, a, b);
  const double alpha = float_attribute(request.node, "alpha"), beta = float_attribute(request.node, "beta");
  const bool has_c = request.has_input(In::C);
  const Addend c = has_c ? addend_of(request.inputs[In::C].shape, p.rows, p.columns) : Addend::Row;
#ifdef ARBALEST_ONEDNN
  const bool plain = alpha == 1 && (!has_c || (beta == 1 && c == Addend::Row));
  if (plain && onednn::supported(a.dtype) && p.rows * p.depth * p.columns > 0) {
    if (auto kernel = onednn_matmul(onednn::matrix_desc(p.rows, p.depth, p.trans_a, a.dtype),
                                    onednn::matrix_desc(p.depth, p.columns, p.trans_b, a.dtype),
                                    onednn::matrix_desc(p.rows, p.columns, false, request.outputs[0].dtype), 0, 1,
                                    has_c ? p.columns : 0, request.deterministic)) {
      return kernel;
    }
  }
#endif
  const Multiplication m{p.rows,
                         p.depth,
                         p.columns,
                         p.trans_a ? 1 : p.depth,
                         p.trans_a ? p.rows : 1,
                         p.trans_b ? 1 : p.columns,
                         p.trans_b ? p.depth : 1,
                         alpha,
                         beta,
                         c == Addend::Matrix   ? p.columns
                         : c == Addend::Column ? 1
                                               : 0,
                         c == Addend::Row || c == Addend::Matrix ? 1 : 0};
  return make_kernel([m, has_c](const KernelContext& context) {
    multiply<T, T>(m, input<T>(context, In::A), input<T>(context, In::B),
                   has_c ? input<Wide<T>>(context, In::C) : nullptr, output<T>(context, 0));
  });
}

// dB = alpha · op(A)ᵀ dY, transposed if B is. Inputs: A, dY.
std::unique_ptr<Kernel> grad_b_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const TensorType &a = request.inputs[GemmGradBInput::A], &dy = request.inputs[GemmGradBInput::dY];
  const bool trans_a = flag_attribute(request.node, "transA"), trans_b = flag_attribute(request.node, "transB");
  const int64_t rows = dy.shape[0], columns = dy.shape[1], depth = a.shape[trans_a ? 0 : 1];
  const double alpha = float_attribute(request.node, "alpha");
#ifdef ARBALEST_ONEDNN
  if (alpha == 1 && onednn::supported(a.dtype) && rows * columns * depth > 0) {
    // (depth × rows)(rows × columns), or with B transposed (columns × rows)(rows × depth).
    const auto y = onednn::matrix_desc(trans_b ? columns : depth, trans_b ? depth : columns, false, DataType::Float32);
    auto kernel =
        trans_b ? onednn_matmul(onednn::matrix_desc(columns, rows, true, a.dtype),
                                onednn::matrix_desc(rows, depth, trans_a, a.dtype), y, 1, 0, 0, request.deterministic)
                : onednn_matmul(onednn::matrix_desc(depth, rows, !trans_a, a.dtype),
                                onednn::matrix_desc(rows, columns, false, a.dtype), y, 0, 1, 0, request.deterministic);
    if (kernel) return kernel;
  }
#endif
  const int64_t a_row = trans_a ? 1 : depth, a_depth = trans_a ? rows : 1;  // strides of op(A)
  const Multiplication m = trans_b ? Multiplication{columns, rows, depth, 1, columns, a_row, a_depth, alpha, 0, 0, 0}
                                   : Multiplication{depth, rows, columns, a_depth, a_row, columns, 1, alpha, 0, 0, 0};
  return make_kernel([m, trans_b](const KernelContext& context) {
    const T *left = input<T>(context, trans_b ? 1 : 0), *right = input<T>(context, trans_b ? 0 : 1);
    multiply<T, Wide<T>>(m, left, right, nullptr, output<Wide<T>>(context, 0));
  });
}

void infer_gemm(InferContext& context) {
  using In = GemmInput;
  const TensorType &a = floating_input(context, In::A, {2}), &b = floating_input(context, In::B, {2});
  if (b.dtype != a.dtype) expect_input(context, In::B, {a.dtype, b.shape}, "the element type of 'A'");
  const GemmProduct p = product_of(context.node(), a, b);
  const int64_t b_depth = b.shape[p.trans_b ? 1 : 0];
  if (b_depth != p.depth) {
    context.fail(fmt::format("input 'A' is {}{} and input 'B' is {}{}: {} columns meet {} rows", to_string(a),
                             p.trans_a ? ", transposed," : "", to_string(b), p.trans_b ? ", transposed" : "", p.depth,
                             b_depth));
  }
  if (context.has_input(In::C)) {
    const Shape& c = context.input(In::C).shape;
    const DataType dtype = master_type(a.dtype);
    const auto broadcasts = [&](size_t from_end, int64_t extent) {
      return c.size() < from_end || c[c.size() - from_end] == 1 || c[c.size() - from_end] == extent;
    };
    if (c.size() > 2 || !broadcasts(1, p.columns) || !broadcasts(2, p.rows) || context.input(In::C).dtype != dtype) {
      context.fail(fmt::format("input 'C' is {}; expected {} or what broadcasts to it", to_string(context.input(In::C)),
                               to_string(TensorType{dtype, {p.rows, p.columns}})));
    }
  }
  context.set_output(0, {a.dtype, {p.rows, p.columns}});
}

void infer_gemm_sum(InferContext& context) {
  using In = GemmInput;
  infer_gemm(context);
  const Node& node = context.node();
  const GemmProduct p = product_of(node, context.input(In::A), context.input(In::B));
  expect_input(context, GemmInput::Summand, {context.input(In::A).dtype, {p.rows, p.columns}},
               "the type of the product");
}

void decompose_gemm_sum(ExpandContext& c) {
  using In = GemmInput;
  const Node node = c.node();
  std::vector<ValueId> inputs = {c.input(In::A), c.input(In::B)};
  if (c.input(In::C) != kNone) inputs.push_back(c.input(In::C));
  const ValueId product = add_one(c, "Gemm", std::move(inputs), node.attributes);
  c.replace_output(0, add_one(c, "Add", {product, c.input(GemmInput::Summand)}));
}

void grad_gemm(GradContext& c) {
  using In = GemmInput;
  const Node node = c.node();
  const ValueId dy = c.output_gradient(0), a = c.input(In::A), b = c.input(In::B);
  const int64_t trans_a = int_attribute(node, "transA"), trans_b = int_attribute(node, "transB");
  const double alpha = float_attribute(node, "alpha"), beta = float_attribute(node, "beta");
  if (c.needs_gradient(In::B)) {
    c.set_input_gradient(In::B, c.add("arbalest.GemmGradB", "grad_b", {a, dy}, 1,
                                      {{"transA", trans_a}, {"transB", trans_b}, {"alpha", alpha}})[0]);
  }
  if (c.input(In::C) != kNone && c.needs_gradient(In::C)) {
    const TensorType type = c.type(c.input(In::C)), y = c.type(dy);
    const bool row = addend_of(type.shape, y.shape[0], y.shape[1]) == Addend::Row && !type.shape.empty();
    if (row) {
      c.set_input_gradient(In::C, c.add("arbalest.ChannelSum", "grad_c", {dy}, 1,
                                        {{"scale", beta}, {"rank", int64_t(type.shape.size())}})[0]);
    } else {
      ValueId gradient = dy;
      if (beta != 1) {
        const auto reshape = [&](ValueId value, const Shape& shape, std::string_view label) {
          return c.add("Reshape", label, {value}, 1, {{"shape", shape}, {"allowzero", int64_t{1}}})[0];
        };
        // The sums of one row are its elements, scaled.
        const ValueId one_row = reshape(dy, {1, y.elements()}, "grad_c_row");
        const ValueId scaled = c.add("arbalest.ChannelSum", "grad_c_scaled", {one_row}, 1, {{"scale", beta}})[0];
        gradient = reshape(scaled, y.shape, "grad_c_matrix");
      }
      if (type.shape != y.shape) gradient = c.add("arbalest.SumTo", "grad_c", {gradient, c.input(In::C)}, 1)[0];
      c.set_input_gradient(In::C, gradient);
    }
  }
  if (!c.needs_gradient(In::A)) return;
  // dA = dY op(B)ᵀ; if A is transposed, op(B) dYᵀ.
  const auto grad_a =
      trans_a ? c.add("Gemm", "grad_a", {b, dy}, 1, {{"transA", trans_b}, {"transB", int64_t{1}}, {"alpha", alpha}})
              : c.add("Gemm", "grad_a", {dy, b}, 1, {{"transB", int64_t{1 - trans_b}}, {"alpha", alpha}});
  c.set_input_gradient(In::A, grad_a[0]);
}

void infer_grad_b(InferContext& context) {
  using In = GemmGradBInput;
  const TensorType &a = floating_input(context, In::A, {2}), &dy = floating_input(context, In::dY, {2});
  const bool trans_a = flag_attribute(context.node(), "transA"), trans_b = flag_attribute(context.node(), "transB");
  const int64_t rows = a.shape[trans_a ? 1 : 0], depth = a.shape[trans_a ? 0 : 1], columns = dy.shape[1];
  expect_input(context, In::dY, {a.dtype, {rows, columns}}, "the type of Gemm's output");
  context.set_output(0, {master_type(a.dtype), trans_b ? Shape{columns, depth} : Shape{depth, columns}});
}

struct GemmCase {
  const char* name;
  int64_t rows, depth, columns, trans_a, trans_b;
  double alpha, beta;
  int bias;  // 0: none; 1: (N); 2: (1, N); 3: (M, N); 4: (); 5: (1); 6: (M, 1)
};
constexpr GemmCase kGemmCases[] = {
    {"LeNet", 64, 800, 500, 0, 1, 1, 1, 1},
    {"classes", 64, 500, 10, 0, 1, 1, 1, 1},
    {"plain", 7, 5, 9, 0, 0, 1, 1, 0},
    {"A transposed", 7, 5, 9, 1, 0, 1, 1, 1},
    {"both transposed", 6, 3, 13, 1, 1, 1, 1, 2},
    {"matrix C", 4, 6, 5, 0, 0, 1, 1, 3},
    {"scaled", 5, 4, 3, 0, 1, 0.5, 2, 1},
    {"scaled matrix C", 3, 4, 5, 0, 0, 1, -0.5, 3},
    {"scalar C", 4, 3, 5, 0, 0, 1, 2, 4},
    {"C of one element", 4, 3, 5, 0, 0, 1, 1, 5},
    {"column C", 4, 3, 5, 0, 0, 2, 1, 6},
    {"one element", 1, 1, 1, 0, 0, 1, 1, 1},
    {"one row", 1, 33, 17, 0, 1, 1, 1, 2},
    {"few columns", 16483, 3, 5, 0, 1, 0.5, 1, 1},
    {"few columns, no bias", 16384, 4, 4, 0, 0, 1, 1, 0},
    {"a step of a GRU", 64, 128, 384, 0, 1, 1, 1, 1},
    {"a step's gradient", 64, 384, 128, 0, 0, 1, 1, 0},
    {"small, A transposed", 24, 33, 40, 1, 0, 0.5, 2, 6},
    {"small, both transposed", 40, 72, 33, 1, 1, 2, 1, 4},
    {"small, matrix C", 3, 24, 8, 0, 0, 1, -0.5, 3},
    {"small, deep", 17, 1000, 56, 0, 1, 1, 1, 1},
    {"small, one row", 1, 512, 1000, 0, 0, 1, 1, 2},
    {"large tiles", 250, 264, 328, 0, 0, 1, 1, 1},
    {"large tiles, both transposed", 248, 48, 330, 1, 1, 1, 1, 0},
};

std::vector<Sample> gemm_samples() {
  std::vector<Sample> samples;
  for (const GemmCase& c : kGemmCases) {
    const Shape a = c.trans_a ? Shape{c.depth, c.rows} : Shape{c.rows, c.depth};
    const Shape b = c.trans_b ? Shape{c.columns, c.depth} : Shape{c.depth, c.columns};
    Sample sample{.name = c.name,
                  .inputs = {{{DataType::Float32, a}}, {{DataType::Float32, b}}},
                  .attributes = {{"transA", c.trans_a}, {"transB", c.trans_b}, {"alpha", c.alpha}, {"beta", c.beta}}};
    const Shape biases[] = {{}, {c.columns}, {1, c.columns}, {c.rows, c.columns}, {}, {1}, {c.rows, 1}};
    if (c.bias) sample.inputs.push_back({{DataType::Float32, biases[c.bias]}});
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<Sample> gemm_sum_samples() {
  std::vector<Sample> samples = gemm_samples();
  for (size_t i = 0; i < samples.size(); ++i) {
    std::vector<Sample::Input>& inputs = samples[i].inputs;
    if (inputs.size() == 2) inputs.push_back({{DataType::Token, {}}, 0, 0, false});
    inputs.push_back({{DataType::Float32, {kGemmCases[i].rows, kGemmCases[i].columns}}});
    for (Sample::Input& input : inputs) input.differentiable = false;
  }
  return samples;
}

std::vector<Sample> grad_b_samples() {
  std::vector<Sample> samples;
  for (const GemmCase& c : kGemmCases) {
    const Shape a = c.trans_a ? Shape{c.depth, c.rows} : Shape{c.rows, c.depth};
    samples.push_back({.name = c.name,
                       .inputs = {{{DataType::Float32, a}}, {{DataType::Float32, {c.rows, c.columns}}}},
                       .attributes = {{"transA", c.trans_a}, {"transB", c.trans_b}, {"alpha", c.alpha}}});
  }
  return samples;
}

std::vector<AttributeSpec> product_specs() {
  return {int_spec("transA", 0, "1: A is transposed"), int_spec("transB", 0, "1: B is transposed"),
          float_spec("alpha", 1.0, "factor of the product")};
}

Cost gemm_cost(const Graph& graph, const Node& node) {
  const bool forward = node.op->name != "GemmGradB";
  const TensorType &a = input_type(graph, node, 0),
                   &y = forward ? output_type(graph, node, 0) : input_type(graph, node, GemmGradBInput::dY);
  return {2 * double(y.elements()) * double(a.shape[int_attribute(node, "transA") ? 0 : 1]),
          operand_bytes(graph, node)};
}

}  // namespace

void register_product_gemm(OpRegistry& registry) {
  std::vector<AttributeSpec> gemm_specs = product_specs();
  gemm_specs.push_back(float_spec("beta", 1.0, "factor of C"));
  registry.add({.domain = "",
                .name = "Gemm",
                .doc = "alpha * A B + beta * C",
                .inputs = {lowered("A"), lowered("B").as(OperandSpec::Weight),
                           plain("C", OperandSpec::Optional).as(OperandSpec::Bias)},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = gemm_specs,
                .infer = infer_gemm,
                .grad = grad_gemm,
                .cost = gemm_cost,
                .samples = gemm_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return gemm_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "GemmSum",
                .doc = "alpha * A B + beta * C + summand, in the product's own epilogue",
                .inputs = {{.name = "A", .lowered = true},
                           {.name = "B", .lowered = true},
                           {.name = "C", .arity = OperandSpec::Optional},
                           {.name = "summand", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = gemm_specs,
                .internal = true,
                .infer = infer_gemm_sum,
                .decompose = decompose_gemm_sum,
                .cost = gemm_cost,
                .samples = gemm_sum_samples,
                .cpu = decomposed_cpu});
  registry.add({.domain = "arbalest",
                .name = "GemmGradB",
                .doc = "the gradient of Gemm's B",
                .inputs = {{.name = "A", .lowered = true}, {.name = "dY", .lowered = true}},
                .outputs = {{.name = "dB"}},
                .attributes = product_specs(),
                .internal = true,
                .infer = infer_grad_b,
                .cost = gemm_cost,
                .samples = grad_b_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return grad_b_cpu(r, t); })});
}

}  // namespace arbalest
