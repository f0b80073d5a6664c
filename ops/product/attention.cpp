// SPDX-License-Identifier: Apache-2.0

// arbalest.Attention: scaled dot-product attention, so that the matrix of all scores is never stored. The pass
// fuse_attention makes it of two MatMuls with a Softmax between them, also if biases or a mask are added before the
// Softmax. Another operator, arbalest.PackedAttention, reads Q, K and V where one product made them, and its gradient
// is one tensor too.

#include "ops/product/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/definition.h"
#include "ops/fused/decomposed.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

constexpr const char* kProjections[] = {"Q", "K", "V"};

// Head axes of Q, K, V and Y.
Ints head_axes_of(const Node& node) {
  const Ints axes = ints_attribute(node, "head_axes");
  const bool known = std::all_of(axes.begin(), axes.end(), [](int64_t axis) { return axis == 1 || axis == 2; });
  if (axes.size() == 4 && known) return axes;
  fail(node, fmt::format("attribute 'head_axes' is {}; expected 1 or 2 for each of Q, K, V and Y",
                         to_string(axes, '[', ']')));
}

int64_t head_axis_of_output(const Node& node) {
  const int64_t axis = int_attribute(node, "head_axis");
  if (axis == 1 || axis == 2) return axis;
  fail(node, fmt::format("attribute 'head_axis' is {}; expected 1 or 2", axis));
}

Shape shape_of(int64_t head_axis, int64_t samples, int64_t heads, int64_t rows, int64_t depth) {
  return head_axis == 1 ? Shape{samples, heads, rows, depth} : Shape{samples, rows, heads, depth};
}

HeadSteps head_steps(int64_t head_axis, int64_t heads, int64_t rows, int64_t depth) {
  if (head_axis == 1) return {heads * rows * depth, rows * depth, depth};
  return {heads * rows * depth, depth, heads * depth};
}

bool is_packed(const Node& node) {
  return node.op->inputs[0].name == "QKV";
}

AttentionPlaces places(bool packed, bool gradient) {
  const size_t next = packed ? 1 : 3;  // after Q, K and V
  return {.k = packed ? size_t{0} : 1,
          .v = packed ? size_t{0} : 2,
          .bias = gradient ? next + 3 : next,
          .y = next,
          .statistics = next + 1,
          .dy = next + 2,
          .dbias = next};
}

}  // namespace

AttentionProblem::AttentionProblem(const Node& node, const std::vector<TensorType>& inputs, bool gradient)
    : scale(float_attribute(node, "scale")), at(places(is_packed(node), gradient)) {
  if (packed()) {
    place_parts(node, inputs[0]);
  } else {
    place_operands(node, inputs[0], inputs[at.k], inputs[at.v]);
  }
  y = head_steps(output_head_axis_, heads, queries, depth);
  if (at.bias < inputs.size() && inputs[at.bias].dtype != DataType::Token) add_bias(node, inputs[at.bias]);
}

void AttentionProblem::place_parts(const Node& node, const TensorType& type) {
  heads = int_attribute_from(node, "heads", 1);
  const int64_t width = type.shape[2];
  if (width % 3 != 0 || width / 3 % heads != 0) {
    fail(node, fmt::format("input 'QKV' is {}; expected rows of Q, K and V, each of {} heads", to_string(type), heads));
  }
  samples = type.shape[0];
  queries = keys = type.shape[1];
  depth = width / 3 / heads;
  q = k = v = {queries * width, depth, width};
  k.first = width / 3;
  v.first = width / 3 * 2;
  output_head_axis_ = head_axis_of_output(node);
}

void AttentionProblem::place_operands(const Node& node, const TensorType& q_type, const TensorType& k_type,
                                      const TensorType& v_type) {
  const TensorType* types[] = {&q_type, &k_type, &v_type};
  for (const size_t i : {size_t{0}, size_t{1}}) {
    if (types[i]->shape.size() == 4) continue;
    fail(node, fmt::format("input '{}' is {}; expected four axes: samples, heads, rows and depth", kProjections[i],
                           to_string(*types[i])));
  }
  const Ints axes = head_axes_of(node);
  samples = q_type.shape[0];
  heads = q_type.shape[size_t(axes[0])];
  queries = q_type.shape[size_t(3 - axes[0])];
  depth = q_type.shape[3];
  keys = k_type.shape[size_t(3 - axes[1])];
  for (const size_t i : {size_t{1}, size_t{2}}) {
    const Shape expected = shape_of(axes[i], samples, heads, keys, depth);
    if (types[i]->shape == expected) continue;
    fail(node, fmt::format("input '{}' is {}; expected the shape {}", kProjections[i], to_string(*types[i]),
                           to_string(expected)));
  }
  q = head_steps(axes[0], heads, queries, depth);
  k = head_steps(axes[1], heads, keys, depth);
  v = head_steps(axes[2], heads, keys, depth);
  output_head_axis_ = axes[3];
}

void AttentionProblem::add_bias(const Node& node, const TensorType& type) {
  Shape shape = type.shape;
  if (shape.size() < 4) shape.insert(shape.begin(), 4 - shape.size(), 1);
  const bool fits = shape.size() == 4 && shape[0] > 0 && samples % shape[0] == 0 &&
                    (shape[1] == 1 || shape[1] == heads) && shape[2] == queries && shape[3] == keys;
  if (!fits) {
    fail(node, fmt::format(
                   "input 'bias' is {}; expected {} rows of {}, for each of {} heads of {} samples, for all or in turn",
                   to_string(type), queries, keys, heads, samples));
  }
  bias_samples = shape[0];
  bias_heads = shape[1];
  causal = int_attribute(node, "causal") != 0;
  bias = {bias_samples == 1 ? 0 : bias_heads * queries * keys, bias_heads == 1 ? 0 : queries * keys, keys};
}

Shape AttentionProblem::output_shape() const {
  return shape_of(output_head_axis_, samples, heads, queries, depth);
}

namespace {

// `type_of(input)` gives the type of an input.
template <typename TypeOf>
AttentionProblem problem_of(const Node& node, bool gradient, const TypeOf& type_of) {
  std::vector<TensorType> types;
  for (const ValueId input : node.inputs) {
    types.push_back(input == kNone ? TensorType{DataType::Token, {}} : type_of(input));
  }
  return {node, types, gradient};
}

AttentionProblem problem_of(const Graph& graph, const Node& node, bool gradient) {
  return problem_of(node, gradient, [&](ValueId input) { return graph.values[input].type; });
}

// The problem, after a check of the element types of Q, K, V and the bias.
AttentionProblem checked_problem(const InferContext& context, bool gradient) {
  const DataType type = floating_input(context, 0, {is_packed(context.node()) ? size_t{3} : 4}).dtype;
  const AttentionProblem problem = problem_of(context.graph(), context.node(), gradient);
  for (const size_t i : {problem.at.k, problem.at.v, problem.at.bias}) {
    if (!context.has_input(i)) continue;
    expect_input(context, i, {type, context.input(i).shape}, "the element type of " + input_name(context, 0));
  }
  return problem;
}

void infer_attention(InferContext& context) {
  const AttentionProblem problem = checked_problem(context, false);
  const DataType type = context.input(0).dtype;
  context.set_output(AttentionOutput::Y, {type, problem.output_shape()});
  context.set_output(AttentionOutput::Statistics, {master_type(type), problem.statistics_shape()});
}

void infer_attention_grad(InferContext& context) {
  const AttentionProblem problem = checked_problem(context, true);
  const DataType type = context.input(0).dtype;
  for (const size_t i : {problem.at.y, problem.at.dy}) {
    expect_input(context, i, {type, problem.output_shape()}, "the type of the output");
  }
  expect_input(context, problem.at.statistics, {master_type(type), problem.statistics_shape()},
               "one number for each row of Q");
  for (const size_t i : {size_t{0}, problem.at.k, problem.at.v}) context.set_output(i, context.input(i));
  if (context.output_count() <= problem.at.dbias) return;
  if (!problem.biased() || problem.causal) {
    context.fail("output 'dbias' exists only where there is an input 'bias', and the attribute 'causal' is 0");
  }
  context.set_output(problem.at.dbias, context.input(problem.at.bias));
}

// `parts`: 3, Q, K and V; 1, all in one.
std::function<void(GradContext&)> grad_attention(size_t parts, std::string op) {
  return [parts, op = std::move(op)](GradContext& c) {
    const ValueId dy = c.output_gradient(0);  // statistics have no gradient
    const bool biased = c.input(parts) != kNone;
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < parts; ++i) inputs.push_back(c.input(i));
    inputs.insert(inputs.end(), {c.output(AttentionOutput::Y), c.output(AttentionOutput::Statistics), dy});
    if (biased) inputs.push_back(c.input(parts));
    const size_t count = biased && c.needs_gradient(parts) ? parts + 1 : parts;
    const auto gradients = c.add(op, "grad", inputs, int(count), c.node().attributes);
    for (size_t i = 0; i < count; ++i) {
      if (c.needs_gradient(i)) c.set_input_gradient(i, gradients[i]);
    }
  };
}

// Attention in terms of matrix products and Softmax, and its gradient by the statistics of that.
class Apart {
 public:
  Apart(ExpandContext& c, bool gradient)
      : c_(c), p_(problem_of(c.node(), gradient, [&](ValueId input) { return c.type(input); })) {
    const Node& node = c.node();
    axes_ = p_.packed() ? Ints(3, 2) : head_axes_of(node);
    if (p_.packed()) axes_.push_back(head_axis_of_output(node));
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i] = p_.packed() ? part(int64_t(i)) : c.input(i);
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i] = turned(parts_[i], axes_[i]);
    scale_ = c.constant("scale", c.type(parts_[0]).dtype, std::vector<double>{p_.scale});
    scores_ = add("Mul", {product(parts_[0], parts_[1], kTurnSecond), scale_});
    if (p_.biased()) scores_ = together(add("Add", {in_turns(scores_), c.input(p_.at.bias)}));
  }

  void replace() {
    const ValueId y = product(add("Softmax", {scores_}), parts_[2]);
    c_.replace_output(AttentionOutput::Y, turned(y, axes_[3]));
    c_.replace_output(AttentionOutput::Statistics, add("ReduceLogSumExp", {scores_}, {{"axes", Ints{3}}}));
  }

  void replace_gradient() {
    const ValueId weights = add("Exp", {add("Sub", {scores_, c_.input(p_.at.statistics)})});
    const ValueId y = turned(c_.input(p_.at.y), axes_[3]), dy = turned(c_.input(p_.at.dy), axes_[3]);
    const ValueId mean = add("ReduceSum", {add("Mul", {dy, y})}, {{"axes", Ints{3}}});
    const ValueId dscores = add("Mul", {weights, add("Sub", {product(dy, parts_[2], kTurnSecond), mean})});
    const ValueId slope = add("Mul", {dscores, scale_});
    const std::array<ValueId, 3> gradients = {product(slope, parts_[1]), product(slope, parts_[0], kTurnFirst),
                                              product(weights, dy, kTurnFirst)};
    std::vector<ValueId> rows;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const ValueId gradient = turned(gradients[i], axes_[i]);
      if (!p_.packed()) c_.replace_output(i, gradient);
      if (p_.packed()) rows.push_back(add("Reshape", {gradient}, {{"shape", Ints{0, 0, p_.heads * p_.depth}}}));
    }
    if (p_.packed()) c_.replace_output(0, add("Concat", rows, {{"axis", int64_t{2}}}));
    if (p_.biased()) c_.replace_output(p_.at.dbias, add("arbalest.SumTo", {in_turns(dscores), c_.input(p_.at.bias)}));
  }

 private:
  static constexpr const char *kTurnFirst = "transA", *kTurnSecond = "transB";

  ValueId add(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return add_one(c_, op, std::move(inputs), std::move(attributes));
  }
  ValueId product(ValueId a, ValueId b, const char* transposed = nullptr) {
    return add("arbalest.BatchMatMul", {a, b}, transposed ? Attributes{{transposed, int64_t{1}}} : Attributes{});
  }
  // Scores with the axis of samples in two, of which the second goes through the biases; and back.
  bool has_turns() const { return p_.bias_samples > 1 && p_.bias_samples < p_.samples; }
  ValueId in_turns(ValueId scores) {
    if (!has_turns()) return scores;
    return add("Reshape", {scores}, {{"shape", Ints{-1, p_.bias_samples, p_.heads, p_.queries, p_.keys}}});
  }
  ValueId together(ValueId scores) {
    return has_turns() ? add("Reshape", {scores}, {{"shape", Ints{-1, p_.heads, p_.queries, p_.keys}}}) : scores;
  }
  // Heads before rows, or back.
  ValueId turned(ValueId x, int64_t head_axis) {
    return head_axis == 1 ? x : add("Transpose", {x}, {{"perm", Ints{0, 2, 1, 3}}});
  }
  // Q, K or V out of the rows of all three: (samples, rows, heads, depth).
  ValueId part(int64_t i) {
    const int64_t width = p_.heads * p_.depth;
    const ValueId rows =
        add("Slice", {c_.input(0)}, {{"starts", Ints{i * width}}, {"ends", Ints{(i + 1) * width}}, {"axes", Ints{2}}});
    return add("Reshape", {rows}, {{"shape", Ints{0, 0, p_.heads, p_.depth}}});
  }

  ExpandContext& c_;
  const AttentionProblem p_;
  Ints axes_;                       // of heads, in Q, K, V and Y
  std::array<ValueId, 3> parts_{};  // Q, K and V as (samples, heads, rows, depth)
  ValueId scale_ = kNone, scores_ = kNone;
};

// `products` matrix products of queries and keys.
std::function<Cost(const Graph&, const Node&)> cost(double products, bool gradient) {
  return [products, gradient](const Graph& graph, const Node& node) {
    const AttentionProblem p = problem_of(graph, node, gradient);
    return Cost{
        products * 2 * double(p.samples) * double(p.heads) * double(p.queries) * double(p.keys) * double(p.depth),
        operand_bytes(graph, node)};
  };
}

Sample::Input noise(Shape shape) {
  return {{DataType::Float32, std::move(shape)}, -1, 1};
}

// Adds the inputs that follow Q, K and V.
void complete(Sample& sample, bool gradient, const Shape& y, const Shape& statistics, int64_t keys, const Shape& bias) {
  sample.tolerance = 1e-5;
  sample.output_count = gradient ? int(sample.inputs.size()) : 2;
  if (gradient) {
    // Any number would do for the logarithm of a sum; this one is near.
    const double sum = std::log(double(keys));
    sample.inputs.push_back(noise(y));
    sample.inputs.push_back({{DataType::Float32, statistics}, sum, sum + 0.5});
    sample.inputs.push_back(noise(y));
  }
  if (bias.empty()) return;
  sample.name += ", with " + to_string(bias);
  sample.inputs.push_back(noise(bias));
  if (gradient) ++sample.output_count;
}

std::vector<Sample> attention_samples(bool gradient) {
  struct Case {
    int64_t samples, heads, queries, keys, depth;
    Ints axes;
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
        Case{256, 2, 16, 16, 8, {2, 2, 2, 2}, 0.35, {2, 16, 16}}, Case{64, 4, 16, 16, 6, {1, 1, 1, 2}, 0.41},
        Case{9, 2, 33, 50, 20, {2, 1, 2, 1}, 0.22, {2, 33, 50}},
        Case{6, 2, 33, 50, 40, {1, 2, 1, 2}, 0.18, {3, 1, 33, 50}},
        Case{6, 2, 20, 70, 32, {1, 1, 1, 1}, 0.18, {3, 2, 20, 70}}}) {
    const auto of = [&](size_t i, int64_t rows) { return shape_of(c.axes[i], c.samples, c.heads, rows, c.depth); };
    Sample sample{.name = fmt::format("{}×{} heads, {} of {}, depth {}, axes {}", c.samples, c.heads, c.queries, c.keys,
                                      c.depth, to_string(c.axes, '[', ']')),
                  .inputs = {noise(of(0, c.queries)), noise(of(1, c.keys)), noise(of(2, c.keys))},
                  .attributes = {{"head_axes", c.axes}, {"scale", c.scale}}};
    complete(sample, gradient, of(3, c.queries), {c.samples, c.heads, c.queries, 1}, c.keys, c.bias);
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<Sample> packed_samples(bool gradient) {
  struct Case {
    int64_t samples, heads, rows, depth, head_axis;
    double scale;
    Shape bias = {};
  };
  std::vector<Sample> samples;
  for (const Case& c :
       {Case{1, 1, 1, 1, 1, 1.0}, Case{2, 3, 5, 4, 1, 0.5}, Case{2, 2, 9, 8, 2, 0.35}, Case{2, 3, 50, 64, 2, 0.125},
        Case{1, 2, 197, 64, 1, 0.125}, Case{1, 2, 70, 128, 2, 0.088}, Case{2, 3, 5, 4, 2, 0.5, {5, 5}},
        Case{3, 2, 17, 32, 2, 0.18, {3, 1, 17, 17}}, Case{2, 3, 49, 32, 1, 0.18, {2, 3, 49, 49}},
        Case{2, 2, 64, 64, 2, 0.125, {2, 64, 64}}, Case{128, 2, 16, 8, 2, 0.35, {2, 16, 16}},
        Case{32, 4, 16, 6, 2, 0.41}, Case{128, 3, 49, 32, 2, 0.18, {3, 49, 49}},
        Case{64, 3, 49, 32, 2, 0.18, {16, 3, 49, 49}}, Case{6, 2, 70, 32, 2, 0.18, {3, 2, 70, 70}}}) {
    Sample sample{.name = fmt::format("{}×{} heads of {} rows, depth {}, axis {}", c.samples, c.heads, c.rows, c.depth,
                                      c.head_axis),
                  .inputs = {noise({c.samples, c.rows, 3 * c.heads * c.depth})},
                  .attributes = {{"heads", c.heads}, {"head_axis", c.head_axis}, {"scale", c.scale}}};
    complete(sample, gradient, shape_of(c.head_axis, c.samples, c.heads, c.rows, c.depth),
             {c.samples, c.heads, c.rows, 1}, c.rows, c.bias);
    samples.push_back(std::move(sample));
  }
  return samples;
}

// `own`: Q, K and V or what holds them; then what the operator and its gradient have after them.
std::vector<OperandSpec> inputs(std::vector<OperandSpec> own, bool gradient) {
  if (gradient) {
    own.push_back({.name = "Y", .lowered = true});
    own.push_back({.name = "statistics"});
    own.push_back({.name = "dY", .lowered = true});
  }
  own.push_back({.name = "bias", .arity = OperandSpec::Optional, .lowered = true});
  return own;
}

std::vector<OperandSpec> gradients(std::vector<OperandSpec> own) {
  for (OperandSpec& each : own) each.name = "d" + each.name;
  own.push_back({.name = "dbias", .arity = OperandSpec::Optional, .lowered = true});
  return own;
}

// The operator `name` and its gradient.
void add_pair(OpRegistry& registry, const std::string& name, const std::string& doc,
              const std::vector<OperandSpec>& own, const std::vector<AttributeSpec>& attributes,
              std::vector<Sample> (*samples)(bool gradient)) {
  registry.add({.domain = "arbalest",
                .name = name,
                .doc = doc,
                .inputs = inputs(own, false),
                .outputs = {{.name = "Y", .lowered = true}, {.name = "statistics"}},
                .attributes = attributes,
                .internal = true,
                .infer = infer_attention,
                .grad = grad_attention(own.size(), "arbalest." + name + "Grad"),
                .decompose = [](ExpandContext& c) { Apart(c, false).replace(); },
                .cost = cost(2, false),
                .samples = [samples] { return samples(false); },
                .cpu = decomposed_cpu});
  registry.add({.domain = "arbalest",
                .name = name + "Grad",
                .doc = "the gradients of " + name + ", with the scores computed again",
                .inputs = inputs(own, true),
                .outputs = gradients(own),
                .attributes = attributes,
                .internal = true,
                .infer = infer_attention_grad,
                .decompose = [](ExpandContext& c) { Apart(c, true).replace_gradient(); },
                .cost = cost(5, true),
                .samples = [samples] { return samples(true); },
                .cpu = decomposed_cpu});
}

}  // namespace

void register_product_attention(OpRegistry& registry) {
  const AttributeSpec scale = float_spec("scale", 1.0, "the factor of the scores");
  const AttributeSpec causal = int_spec(
      "causal", 0, "1: the bias hides all keys after each row and does nothing else, so that it may be left unread");
  add_pair(registry, "Attention",
           "softmax(scale · Q Kᵀ + bias) V for each head of each sample, and the logarithm of the sums of Softmax",
           {{.name = "Q", .lowered = true}, {.name = "K", .lowered = true}, {.name = "V", .lowered = true}},
           {scale, causal,
            ints_spec("head_axes", {1, 1, 1, 1},
                      "which axis of Q, K, V and Y is that of heads, 1 or 2; the other is of rows")},
           attention_samples);
  add_pair(registry, "PackedAttention",
           "Attention of Q, K and V that lie side by side in the rows of one tensor (samples, rows, 3 · heads · "
           "depth)",
           {{.name = "QKV", .lowered = true}},
           {scale, causal, required_spec("heads", AttributeKind::Int, "how many heads a row has of each"),
            int_spec("head_axis", 1, "which axis of Y is that of heads, 1 or 2; the other is of rows")},
           packed_samples);
}

}  // namespace arbalest
