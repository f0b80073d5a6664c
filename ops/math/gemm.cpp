// Gemm, ONNX's: Y = alpha · op(A) op(B) + beta · C, with op the transposition where asked for.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#ifdef ARBALEST_ONEDNN
#include "ops/onednn/onednn.h"
#endif

namespace arbalest {
namespace {

// Extents of op(A) (rows × depth) and op(B) (depth × columns).
struct Product {
  int64_t rows, depth, columns;
  bool trans_a, trans_b;
};

Product product_of(const Node& node, const TensorType& a, const TensorType& b) {
  const bool trans_a = flag_attribute(node, "transA"), trans_b = flag_attribute(node, "transB");
  return {a.shape[trans_a ? 1 : 0], a.shape[trans_a ? 0 : 1], b.shape[trans_b ? 0 : 1], trans_a, trans_b};
}

// One matrix product: y (rows × columns) = alpha · a · b + beta · c, with each operand's strides in elements.
struct Multiplication {
  int64_t rows, depth, columns;
  int64_t a_row, a_depth, b_depth, b_column;
  double alpha, beta;
  int64_t c_row, c_column;  // 0: the same for all rows or columns
};

constexpr int64_t kBlock = 64;

// T: elements of a and b; Y: of the result.
template <typename T, typename Y>
void multiply(const Multiplication& m, const T* a, const T* b, const Wide<T>* c, Y* y) {
  using W = Wide<T>;
  parallel_for(m.rows, m.depth * m.columns, [=, &m](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t first = 0; first < m.columns; first += kBlock) {
        const int64_t count = std::min(kBlock, m.columns - first);
        W sums[kBlock] = {};
        for (int64_t k = 0; k < m.depth; ++k) {
          const W factor = widen(a[row * m.a_row + k * m.a_depth]);
          const T* from = b + k * m.b_depth + first * m.b_column;
          for (int64_t i = 0; i < count; ++i) sums[i] += factor * widen(from[i * m.b_column]);
        }
        for (int64_t i = 0; i < count; ++i) {
          W value = W(m.alpha) * sums[i];
          if (c) value += W(m.beta) * c[row * m.c_row + (first + i) * m.c_column];
          y[row * m.columns + first + i] = narrow<Y>(value);
        }
      }
    }
  });
}

#ifdef ARBALEST_ONEDNN
// y = a · b [+ bias along the rows]; nullptr where oneDNN has no kernel for it.
std::unique_ptr<Kernel> onednn_matmul(const onednn::Desc& a, const onednn::Desc& b, const onednn::Desc& y,
                                      int64_t a_input, int64_t b_input, int64_t bias_columns) try {
  const onednn::Desc bias =
      bias_columns ? onednn::matrix_desc(1, bias_columns, false, DataType::Float32) : onednn::Desc();
  const auto desc = onednn::make_matmul(a, b, bias, y);
  if (onednn::is_reference(desc)) return nullptr;
  auto kernel = std::make_unique<onednn::OnednnKernel>();
  std::vector<std::pair<int, onednn::Operand>> arguments = {{DNNL_ARG_SRC, kernel->input(a_input, a)},
                                                            {DNNL_ARG_WEIGHTS, kernel->input(b_input, b)},
                                                            {DNNL_ARG_DST, kernel->output(0, y)}};
  if (bias_columns) arguments.emplace_back(DNNL_ARG_BIAS, kernel->input(2, bias));
  kernel->add<dnnl::matmul>(desc, std::move(arguments));
  return kernel;
} catch (const dnnl::error&) {
  return nullptr;
}
#endif

std::unique_ptr<Kernel> gemm_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const TensorType &a = request.inputs[0], &b = request.inputs[1];
  const Product p = product_of(request.node, a, b);
  const double alpha = float_attribute(request.node, "alpha"), beta = float_attribute(request.node, "beta");
  const bool has_c = request.has_input(2);
  const bool c_is_matrix = has_c && request.inputs[2].shape.size() == 2 && request.inputs[2].shape[0] != 1;
#ifdef ARBALEST_ONEDNN
  const bool plain = alpha == 1 && (!has_c || (beta == 1 && !c_is_matrix));
  if (plain && onednn::supported(a.dtype) && p.rows * p.depth * p.columns > 0) {
    if (auto kernel = onednn_matmul(onednn::matrix_desc(p.rows, p.depth, p.trans_a, a.dtype),
                                    onednn::matrix_desc(p.depth, p.columns, p.trans_b, a.dtype),
                                    onednn::matrix_desc(p.rows, p.columns, false, request.outputs[0].dtype), 0, 1,
                                    has_c ? p.columns : 0)) {
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
                         c_is_matrix ? p.columns : 0,
                         1};
  return make_kernel([m, has_c](const KernelContext& context) {
    multiply<T, T>(m, input<T>(context, 0), input<T>(context, 1), has_c ? input<Wide<T>>(context, 2) : nullptr,
                   output<T>(context, 0));
  });
}

// dB = alpha · op(A)ᵀ dY, transposed where B is. Inputs: A, dY.
std::unique_ptr<Kernel> grad_b_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const TensorType &a = request.inputs[0], &dy = request.inputs[1];
  const bool trans_a = flag_attribute(request.node, "transA"), trans_b = flag_attribute(request.node, "transB");
  const int64_t rows = dy.shape[0], columns = dy.shape[1], depth = a.shape[trans_a ? 0 : 1];
  const double alpha = float_attribute(request.node, "alpha");
#ifdef ARBALEST_ONEDNN
  if (alpha == 1 && onednn::supported(a.dtype) && rows * columns * depth > 0) {
    // (depth × rows)(rows × columns), or with B transposed (columns × rows)(rows × depth).
    const auto y = onednn::matrix_desc(trans_b ? columns : depth, trans_b ? depth : columns, false, DataType::Float32);
    auto kernel = trans_b ? onednn_matmul(onednn::matrix_desc(columns, rows, true, a.dtype),
                                          onednn::matrix_desc(rows, depth, trans_a, a.dtype), y, 1, 0, 0)
                          : onednn_matmul(onednn::matrix_desc(depth, rows, !trans_a, a.dtype),
                                          onednn::matrix_desc(rows, columns, false, a.dtype), y, 0, 1, 0);
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
  const TensorType &a = floating_input(context, 0, {2}), &b = floating_input(context, 1, {2});
  if (b.dtype != a.dtype) expect_input(context, 1, {a.dtype, b.shape}, "the element type of 'A'");
  const Product p = product_of(context.node(), a, b);
  const int64_t b_depth = b.shape[p.trans_b ? 1 : 0];
  if (b_depth != p.depth) {
    context.fail(fmt::format("input 'A' is {}{} and input 'B' is {}{}: {} columns meet {} rows", to_string(a),
                             p.trans_a ? ", transposed," : "", to_string(b), p.trans_b ? ", transposed" : "", p.depth,
                             b_depth));
  }
  if (context.has_input(2)) {
    const Shape& c = context.input(2).shape;
    const DataType dtype = master_type(a.dtype);
    const bool fits = c == Shape{p.columns} || c == Shape{1, p.columns} || c == Shape{p.rows, p.columns};
    if (!fits || context.input(2).dtype != dtype) {
      context.fail(fmt::format("input 'C' is {}; expected {}, {} or {}", to_string(context.input(2)),
                               to_string(TensorType{dtype, {p.columns}}), to_string(TensorType{dtype, {1, p.columns}}),
                               to_string(TensorType{dtype, {p.rows, p.columns}})));
    }
  }
  context.set_output(0, {a.dtype, {p.rows, p.columns}});
}

void grad_gemm(GradContext& c) {
  const Node node = c.node();
  const ValueId dy = c.output_gradient(0), a = c.input(0), b = c.input(1);
  const int64_t trans_a = int_attribute(node, "transA"), trans_b = int_attribute(node, "transB");
  const double alpha = float_attribute(node, "alpha"), beta = float_attribute(node, "beta");
  if (c.needs_gradient(1)) {
    c.set_input_gradient(1, c.add("arbalest.GemmGradB", "grad_b", {a, dy}, 1,
                                  {{"transA", trans_a}, {"transB", trans_b}, {"alpha", alpha}})[0]);
  }
  if (c.input(2) != kNone && c.needs_gradient(2)) {
    const Shape shape = c.type(c.input(2)).shape;
    if (shape.size() == 2 && shape[0] != 1) {
      if (beta != 1) fail(node, "the gradient of a matrix 'C' needs 'beta' = 1");
      c.set_input_gradient(2, dy);
    } else {
      c.set_input_gradient(
          2, c.add("arbalest.ChannelSum", "grad_c", {dy}, 1, {{"scale", beta}, {"rank", int64_t(shape.size())}})[0]);
    }
  }
  if (!c.needs_gradient(0)) return;
  // dA = dY op(B)ᵀ; where A is transposed, op(B) dYᵀ.
  const auto grad_a =
      trans_a ? c.add("Gemm", "grad_a", {b, dy}, 1, {{"transA", trans_b}, {"transB", int64_t{1}}, {"alpha", alpha}})
              : c.add("Gemm", "grad_a", {dy, b}, 1, {{"transB", int64_t{1 - trans_b}}, {"alpha", alpha}});
  c.set_input_gradient(0, grad_a[0]);
}

void infer_grad_b(InferContext& context) {
  const TensorType &a = floating_input(context, 0, {2}), &dy = floating_input(context, 1, {2});
  const bool trans_a = flag_attribute(context.node(), "transA"), trans_b = flag_attribute(context.node(), "transB");
  const int64_t rows = a.shape[trans_a ? 1 : 0], depth = a.shape[trans_a ? 0 : 1], columns = dy.shape[1];
  expect_input(context, 1, {a.dtype, {rows, columns}}, "the type of Gemm's output");
  context.set_output(0, {master_type(a.dtype), trans_b ? Shape{columns, depth} : Shape{depth, columns}});
}

struct Case {
  const char* name;
  int64_t rows, depth, columns, trans_a, trans_b;
  double alpha, beta;
  int bias;  // 0: none; 1: (N); 2: (1, N); 3: (M, N)
};
constexpr Case kCases[] = {
    {"LeNet", 64, 800, 500, 0, 1, 1, 1, 1},
    {"classes", 64, 500, 10, 0, 1, 1, 1, 1},
    {"plain", 7, 5, 9, 0, 0, 1, 1, 0},
    {"A transposed", 7, 5, 9, 1, 0, 1, 1, 1},
    {"both transposed", 6, 3, 13, 1, 1, 1, 1, 2},
    {"matrix C", 4, 6, 5, 0, 0, 1, 1, 3},
    {"scaled", 5, 4, 3, 0, 1, 0.5, 2, 1},
    {"one element", 1, 1, 1, 0, 0, 1, 1, 1},
    {"one row", 1, 33, 17, 0, 1, 1, 1, 2},
};

std::vector<Sample> gemm_samples() {
  std::vector<Sample> samples;
  for (const Case& c : kCases) {
    const Shape a = c.trans_a ? Shape{c.depth, c.rows} : Shape{c.rows, c.depth};
    const Shape b = c.trans_b ? Shape{c.columns, c.depth} : Shape{c.depth, c.columns};
    Sample sample{.name = c.name,
                  .inputs = {{{DataType::Float32, a}}, {{DataType::Float32, b}}},
                  .attributes = {{"transA", c.trans_a}, {"transB", c.trans_b}, {"alpha", c.alpha}, {"beta", c.beta}}};
    const Shape biases[] = {{}, {c.columns}, {1, c.columns}, {c.rows, c.columns}};
    if (c.bias) sample.inputs.push_back({{DataType::Float32, biases[c.bias]}});
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<Sample> grad_b_samples() {
  std::vector<Sample> samples;
  for (const Case& c : kCases) {
    const Shape a = c.trans_a ? Shape{c.depth, c.rows} : Shape{c.rows, c.depth};
    samples.push_back({.name = c.name,
                       .inputs = {{{DataType::Float32, a}}, {{DataType::Float32, {c.rows, c.columns}}}},
                       .attributes = {{"transA", c.trans_a}, {"transB", c.trans_b}, {"alpha", c.alpha}}});
  }
  return samples;
}

std::vector<AttributeSpec> specs() {
  return {int_spec("transA", 0, "1: A is transposed"), int_spec("transB", 0, "1: B is transposed"),
          float_spec("alpha", 1.0, "factor of the product")};
}

Cost gemm_cost(const Graph& graph, const Node& node) {
  const bool forward = node.op->name == "Gemm";
  const TensorType &a = input_type(graph, node, 0),
                   &y = forward ? output_type(graph, node, 0) : input_type(graph, node, 1);
  return {2 * double(y.elements()) * double(a.shape[int_attribute(node, "transA") ? 0 : 1]),
          operand_bytes(graph, node)};
}

}  // namespace

void register_math_gemm(OpRegistry& registry) {
  std::vector<AttributeSpec> gemm_specs = specs();
  gemm_specs.push_back(float_spec("beta", 1.0, "factor of C"));
  registry.add({.domain = "",
                .name = "Gemm",
                .doc = "alpha * A B + beta * C",
                .inputs = {{.name = "A", .lowered = true},
                           {.name = "B", .lowered = true},
                           {.name = "C", .arity = OperandSpec::Optional}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = gemm_specs,
                .infer = infer_gemm,
                .grad = grad_gemm,
                .cost = gemm_cost,
                .samples = gemm_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return gemm_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "GemmGradB",
                .doc = "the gradient of Gemm's B",
                .inputs = {{.name = "A", .lowered = true}, {.name = "dY", .lowered = true}},
                .outputs = {{.name = "dB"}},
                .attributes = specs(),
                .internal = true,
                .infer = infer_grad_b,
                .cost = gemm_cost,
                .samples = grad_b_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return grad_b_cpu(r, t); })});
}

}  // namespace arbalest
