// arbalest.Attention, scaled dot-product attention: what the pass fuse_attention makes of two MatMuls with a Softmax
// between them, or a sum with biases or a mask and a Softmax, so that the matrix of all scores is never stored.

#include "ops/product/attention.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

constexpr const char* kNames[] = {"Q", "K", "V", "Y"};

// Of operand `i` of kNames: 1 or 2.
size_t head_axis(const Node& node, size_t i) {
  const std::vector<int64_t> axes = ints_attribute(node, "head_axes");
  if (axes.size() != 4 || (axes[i] != 1 && axes[i] != 2)) {
    fail(node, fmt::format("attribute 'head_axes' is {}; expected 1 or 2 for each of Q, K, V and Y",
                           to_string(axes, '[', ']')));
  }
  return size_t(axes[i]);
}

Shape shape_of(const Node& node, size_t i, int64_t samples, int64_t heads, int64_t rows, int64_t depth) {
  return head_axis(node, i) == 1 ? Shape{samples, heads, rows, depth} : Shape{samples, rows, heads, depth};
}

HeadSteps steps_of(const Node& node, size_t i, int64_t heads, int64_t rows, int64_t depth) {
  if (head_axis(node, i) == 1) return {heads * rows * depth, rows * depth, depth};
  return {heads * rows * depth, depth, heads * depth};
}

void expect_shape(const Node& node, size_t i, const TensorType& type, const Shape& expected) {
  if (type.shape == expected) return;
  fail(node, fmt::format("input '{}' is {}; expected the shape {}", kNames[i], to_string(type), to_string(expected)));
}

}  // namespace

AttentionProblem::AttentionProblem(const Node& node, const TensorType& q_type, const TensorType& k_type,
                                   const TensorType& v_type, const TensorType* added)
    : scale(float_attribute(node, "scale")) {
  for (const TensorType* type : {&q_type, &k_type}) {
    if (type->shape.size() != 4) {
      fail(node, fmt::format("input '{}' is {}; expected four axes: samples, heads, rows and depth",
                             type == &q_type ? "Q" : "K", to_string(*type)));
    }
  }
  samples = q_type.shape[0];
  heads = q_type.shape[head_axis(node, 0)];
  queries = q_type.shape[3 - head_axis(node, 0)];
  depth = q_type.shape[3];
  keys = k_type.shape[3 - head_axis(node, 1)];
  expect_shape(node, 1, k_type, shape_of(node, 1, samples, heads, keys, depth));
  expect_shape(node, 2, v_type, shape_of(node, 2, samples, heads, keys, depth));
  q = steps_of(node, 0, heads, queries, depth);
  k = steps_of(node, 1, heads, keys, depth);
  v = steps_of(node, 2, heads, keys, depth);
  y = steps_of(node, 3, heads, queries, depth);
  if (added != nullptr) add_bias(node, *added);
}

AttentionProblem::AttentionProblem(const KernelRequest& request, size_t bias)
    : AttentionProblem(request.node, request.inputs[0], request.inputs[1], request.inputs[2],
                       request.has_input(bias) ? &request.inputs[bias] : nullptr) {}

void AttentionProblem::add_bias(const Node& node, const TensorType& type) {
  Shape shape = type.shape;
  if (shape.size() < 4) shape.insert(shape.begin(), 4 - shape.size(), 1);
  const bool fits = shape.size() == 4 && (shape[0] == 1 || shape[0] == samples) &&
                    (shape[1] == 1 || shape[1] == heads) && shape[2] == queries && shape[3] == keys;
  if (!fits) {
    fail(node, fmt::format("input 'bias' is {}; expected {} rows of {}, for each of {} heads of {} samples or for all",
                           to_string(type), queries, keys, heads, samples));
  }
  bias_samples = shape[0];
  bias_heads = shape[1];
  bias = {bias_samples == 1 ? 0 : bias_heads * queries * keys, bias_heads == 1 ? 0 : queries * keys, keys};
}

Shape AttentionProblem::output_shape(const Node& node) const {
  return shape_of(node, 3, samples, heads, queries, depth);
}

namespace {

constexpr size_t kBias = 3, kGradBias = 6;  // inputs of the operator and of its gradient

AttentionProblem problem_of(const InferContext& context, size_t bias) {
  const TensorType& q = floating_input(context, 0, {4});
  for (const size_t i : {size_t{1}, size_t{2}}) {
    if (context.input(i).dtype != q.dtype) {
      expect_input(context, i, {q.dtype, context.input(i).shape}, "the element type of 'Q'");
    }
  }
  if (!context.has_input(bias)) return {context.node(), q, context.input(1), context.input(2), nullptr};
  expect_input(context, bias, {q.dtype, context.input(bias).shape}, "the element type of 'Q'");
  return {context.node(), q, context.input(1), context.input(2), &context.input(bias)};
}

void infer_attention(InferContext& context) {
  const AttentionProblem problem = problem_of(context, kBias);
  const DataType type = context.input(0).dtype;
  context.set_output(0, {type, problem.output_shape(context.node())});
  context.set_output(1, {master_type(type), problem.statistics_shape()});
}

void infer_grad(InferContext& context) {
  const AttentionProblem problem = problem_of(context, kGradBias);
  const DataType type = context.input(0).dtype;
  for (const size_t i : {size_t{3}, size_t{5}}) {
    expect_input(context, i, {type, problem.output_shape(context.node())}, "the type of the output");
  }
  expect_input(context, 4, {master_type(type), problem.statistics_shape()}, "one number for each row of 'Q'");
  for (size_t i = 0; i < 3; ++i) context.set_output(i, context.input(i));
  if (context.output_count() < 4) return;
  if (!problem.biased()) context.fail("output 'dbias' exists only where there is an input 'bias'");
  context.set_output(3, context.input(kGradBias));
}

template <typename W, typename T>
W dot(int64_t count, const T* a, const T* b) {
  W sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += widen(a[i]) * widen(b[i]);
  return sum;
}

// f(the sample, the head) for all of them, on threads.
template <typename F>
void for_each_head(const AttentionProblem& p, const F& f) {
  parallel_for(p.samples * p.heads, p.queries * p.keys * p.depth * 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / p.heads, i % p.heads);
  });
}

int64_t first_of(const HeadSteps& steps, int64_t sample, int64_t head) {
  return sample * steps.sample + head * steps.head;
}

std::unique_ptr<Kernel> attention_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  return make_kernel(
      [p = AttentionProblem(request, kBias), stored = request.has_output(1)](const KernelContext& context) {
        for_each_head(p, [&](int64_t sample, int64_t head) {
          const T* q = input<T>(context, 0) + first_of(p.q, sample, head);
          const T* k = input<T>(context, 1) + first_of(p.k, sample, head);
          const T* v = input<T>(context, 2) + first_of(p.v, sample, head);
          const T* added = p.biased() ? input<T>(context, kBias) + first_of(p.bias, sample, head) : nullptr;
          T* y = output<T>(context, 0) + first_of(p.y, sample, head);
          std::vector<W> weights(size_t(p.keys)), sums(size_t(p.depth));
          for (int64_t row = 0; row < p.queries; ++row) {
            W largest = -INFINITY, total = 0;
            for (int64_t key = 0; key < p.keys; ++key) {
              weights[size_t(key)] = W(p.scale) * dot<W>(p.depth, q + row * p.q.row, k + key * p.k.row);
              if (added) weights[size_t(key)] += widen(added[row * p.bias.row + key]);
              largest = std::max(largest, weights[size_t(key)]);
            }
            std::fill(sums.begin(), sums.end(), W(0));
            for (int64_t key = 0; key < p.keys; ++key) {
              const W weight = std::exp(weights[size_t(key)] - largest);
              total += weight;
              for (int64_t i = 0; i < p.depth; ++i) sums[size_t(i)] += weight * widen(v[key * p.v.row + i]);
            }
            for (int64_t i = 0; i < p.depth; ++i) y[row * p.y.row + i] = narrow<T>(sums[size_t(i)] / total);
            if (stored) output<W>(context, 1)[(sample * p.heads + head) * p.queries + row] = largest + std::log(total);
          }
        });
      });
}

// Of what is added: its gradient is that of the scores, summed over the samples and heads that have it in common. Each
// row is one thread's, so that sums are the same for any number of them.
template <typename T>
void grad_bias(const AttentionProblem& p, const KernelContext& context) {
  using W = Wide<T>;
  const int64_t rows = p.bias_samples * p.bias_heads * p.queries;
  parallel_for(rows, p.keys * p.depth * 4, [&](int64_t begin, int64_t end) {
    std::vector<W> sums(size_t(p.keys));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % p.queries, first = i / p.queries;  // its sample and head, counted together
      const T* added = input<T>(context, kGradBias) + i * p.keys;
      std::fill(sums.begin(), sums.end(), W(0));
      for (int64_t each = 0; each < p.samples * p.heads; ++each) {
        const int64_t sample = each / p.heads, head = each % p.heads;
        const int64_t own = (p.bias_samples == 1 ? 0 : sample) * p.bias_heads + (p.bias_heads == 1 ? 0 : head);
        if (own != first) continue;
        const T *q = input<T>(context, 0) + first_of(p.q, sample, head) + row * p.q.row,
                *k = input<T>(context, 1) + first_of(p.k, sample, head),
                *v = input<T>(context, 2) + first_of(p.v, sample, head);
        const int64_t at = first_of(p.y, sample, head) + row * p.y.row;
        const T *y = input<T>(context, 3) + at, *dy = input<T>(context, 5) + at;
        const W sum = input<W>(context, 4)[each * p.queries + row], mean = dot<W>(p.depth, dy, y);
        for (int64_t key = 0; key < p.keys; ++key) {
          const W score = W(p.scale) * dot<W>(p.depth, q, k + key * p.k.row) + widen(added[key]);
          sums[size_t(key)] += std::exp(score - sum) * (dot<W>(p.depth, dy, v + key * p.v.row) - mean);
        }
      }
      for (int64_t key = 0; key < p.keys; ++key) output<T>(context, 3)[i * p.keys + key] = narrow<T>(sums[size_t(key)]);
    }
  });
}

std::unique_ptr<Kernel> attention_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  return make_kernel(
      [p = AttentionProblem(request, kGradBias), adds = request.has_output(3)](const KernelContext& context) {
        if (adds) grad_bias<T>(p, context);
        for_each_head(p, [&](int64_t sample, int64_t head) {
          const int64_t q_first = first_of(p.q, sample, head), k_first = first_of(p.k, sample, head),
                        v_first = first_of(p.v, sample, head), y_first = first_of(p.y, sample, head);
          const T *q = input<T>(context, 0) + q_first, *k = input<T>(context, 1) + k_first,
                  *v = input<T>(context, 2) + v_first, *y = input<T>(context, 3) + y_first,
                  *dy = input<T>(context, 5) + y_first;
          const W* statistics = input<W>(context, 4) + (sample * p.heads + head) * p.queries;
          const T* added = p.biased() ? input<T>(context, kGradBias) + first_of(p.bias, sample, head) : nullptr;
          std::vector<W> dq(size_t(p.depth)), dk(size_t(p.keys * p.depth)), dv(dk.size());
          for (int64_t row = 0; row < p.queries; ++row) {
            const W mean = dot<W>(p.depth, dy + row * p.y.row, y + row * p.y.row);
            std::fill(dq.begin(), dq.end(), W(0));
            for (int64_t key = 0; key < p.keys; ++key) {
              const T *query = q + row * p.q.row, *keyed = k + key * p.k.row;
              const W bias = added ? W(widen(added[row * p.bias.row + key])) : W(0);
              const W weight = std::exp(W(p.scale) * dot<W>(p.depth, query, keyed) + bias - statistics[row]);
              const W slope =
                  weight * (dot<W>(p.depth, dy + row * p.y.row, v + key * p.v.row) - mean) * static_cast<W>(p.scale);
              for (int64_t i = 0; i < p.depth; ++i) {
                dq[size_t(i)] += slope * widen(keyed[i]);
                dk[size_t(key * p.depth + i)] += slope * widen(query[i]);
                dv[size_t(key * p.depth + i)] += weight * widen(dy[row * p.y.row + i]);
              }
            }
            T* to = output<T>(context, 0) + q_first + row * p.q.row;
            for (int64_t i = 0; i < p.depth; ++i) to[i] = narrow<T>(dq[size_t(i)]);
          }
          for (int64_t key = 0; key < p.keys; ++key) {
            T *to_k = output<T>(context, 1) + k_first + key * p.k.row,
              *to_v = output<T>(context, 2) + v_first + key * p.v.row;
            for (int64_t i = 0; i < p.depth; ++i) {
              to_k[i] = narrow<T>(dk[size_t(key * p.depth + i)]);
              to_v[i] = narrow<T>(dv[size_t(key * p.depth + i)]);
            }
          }
        });
      });
}

void grad_attention(GradContext& c) {
  const ValueId dy = c.output_gradient(0);
  if (dy == kNone) return;
  const bool biased = c.input(kBias) != kNone;
  std::vector<ValueId> inputs = {c.input(0), c.input(1), c.input(2), c.output(0), c.output(1), dy};
  if (biased) inputs.push_back(c.input(kBias));
  const size_t count = biased && c.needs_gradient(kBias) ? 4 : 3;
  const auto gradients = c.add("arbalest.AttentionGrad", "grad", inputs, int(count), c.node().attributes);
  for (size_t i = 0; i < count; ++i) {
    if (c.needs_gradient(i)) c.set_input_gradient(i, gradients[i]);
  }
}

// `products` matrix products of queries and keys.
std::function<Cost(const Graph&, const Node&)> cost(double products) {
  return [products](const Graph& graph, const Node& node) {
    const AttentionProblem p(node, input_type(graph, node, 0), input_type(graph, node, 1), input_type(graph, node, 2),
                             nullptr);
    return Cost{
        products * 2 * double(p.samples) * double(p.heads) * double(p.queries) * double(p.keys) * double(p.depth),
        operand_bytes(graph, node)};
  };
}

std::vector<Sample> samples(bool gradient) {
  struct Case {
    int64_t samples, heads, queries, keys, depth;
    std::vector<int64_t> axes;
    double scale;
    Shape bias = {};
  };
  std::vector<Sample> samples;
  for (const Case& c :
       {Case{1, 1, 1, 1, 1, {1, 1, 1, 1}, 1.0}, Case{2, 3, 5, 7, 4, {1, 1, 1, 1}, 0.5},
        Case{2, 2, 9, 9, 8, {2, 2, 2, 2}, 0.35}, Case{3, 2, 17, 33, 32, {2, 1, 2, 1}, 0.18},
        Case{2, 3, 50, 50, 64, {2, 2, 2, 2}, 0.125}, Case{2, 2, 64, 197, 64, {1, 2, 1, 2}, 0.125},
        Case{1, 2, 197, 197, 64, {1, 1, 1, 1}, 0.125}, Case{1, 2, 130, 70, 128, {2, 2, 2, 2}, 0.088},
        Case{2, 3, 5, 7, 4, {1, 1, 1, 1}, 0.5, {5, 7}}, Case{2, 2, 9, 9, 8, {2, 2, 2, 2}, 0.35, {2, 9, 9}},
        Case{3, 2, 17, 33, 32, {2, 1, 2, 1}, 0.18, {3, 1, 17, 33}},
        Case{2, 3, 49, 49, 32, {1, 1, 1, 1}, 0.18, {2, 3, 49, 49}},
        Case{2, 2, 64, 128, 64, {2, 2, 2, 2}, 0.125, {1, 2, 64, 128}},
        Case{4, 2, 50, 50, 64, {2, 2, 2, 2}, 0.125, {1, 1, 50, 50}},
        Case{256, 2, 16, 16, 8, {2, 2, 2, 2}, 0.35, {2, 16, 16}}}) {
    const auto of = [&](size_t i, int64_t rows) {
      const Shape shape =
          c.axes[i] == 1 ? Shape{c.samples, c.heads, rows, c.depth} : Shape{c.samples, rows, c.heads, c.depth};
      return Sample::Input{{DataType::Float32, shape}, -1, 1};
    };
    Sample sample{
        .name = fmt::format("{}×{} heads, {} of {}, depth {}, axes {}{}", c.samples, c.heads, c.queries, c.keys,
                            c.depth, to_string(c.axes, '[', ']'), c.bias.empty() ? "" : ", with " + to_string(c.bias)),
        .inputs = {of(0, c.queries), of(1, c.keys), of(2, c.keys)},
        .output_count = 2,
        .attributes = {{"head_axes", c.axes}, {"scale", c.scale}},
        .tolerance = 1e-5};
    if (gradient) {
      sample.output_count = 3;
      // Any number would do for the logarithm of a sum; this one is near.
      const double sum = std::log(double(c.keys));
      sample.inputs.push_back(of(3, c.queries));
      sample.inputs.push_back({{DataType::Float32, {c.samples, c.heads, c.queries, 1}}, sum, sum + 0.5});
      sample.inputs.push_back(of(3, c.queries));
    }
    if (!c.bias.empty()) {
      sample.inputs.push_back({{DataType::Float32, c.bias}, -1, 1});
      if (gradient) sample.output_count = 4;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

const std::vector<AttributeSpec>& specs() {
  static const std::vector<AttributeSpec> specs = {
      float_spec("scale", 1.0, "the factor of the scores"),
      ints_spec("head_axes", {1, 1, 1, 1},
                "which axis of Q, K, V and Y is that of heads, 1 or 2; the other is of rows")};
  return specs;
}

}  // namespace

void register_product_attention(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "Attention",
       .doc = "softmax(scale · Q Kᵀ + bias) V for each head of each sample, and the logarithm of the sums of Softmax",
       .inputs = {{.name = "Q", .lowered = true},
                  {.name = "K", .lowered = true},
                  {.name = "V", .lowered = true},
                  {.name = "bias", .arity = OperandSpec::Optional, .lowered = true}},
       .outputs = {{.name = "Y", .lowered = true}, {.name = "statistics"}},
       .attributes = specs(),
       .internal = true,
       .infer = infer_attention,
       .grad = grad_attention,
       .cost = cost(2),
       .samples = [] { return samples(false); },
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return attention_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "AttentionGrad",
                .doc = "the gradients of Attention, with the scores computed again",
                .inputs = {{.name = "Q", .lowered = true},
                           {.name = "K", .lowered = true},
                           {.name = "V", .lowered = true},
                           {.name = "Y", .lowered = true},
                           {.name = "statistics"},
                           {.name = "dY", .lowered = true},
                           {.name = "bias", .arity = OperandSpec::Optional, .lowered = true}},
                .outputs = {{.name = "dQ", .lowered = true},
                            {.name = "dK", .lowered = true},
                            {.name = "dV", .lowered = true},
                            {.name = "dbias", .arity = OperandSpec::Optional, .lowered = true}},
                .attributes = specs(),
                .internal = true,
                .infer = infer_grad,
                .cost = cost(5),
                .samples = [] { return samples(true); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return attention_grad_cpu(r, t); })});
}

}  // namespace arbalest
