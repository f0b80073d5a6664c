// SPDX-License-Identifier: Apache-2.0

// Attention, ONNX's: scaled dot-product attention over heads, as https://onnx.ai/onnx/operators/ defines it. It becomes
// products and a softmax, spelled as exporters spelled them before opset 23, so that fuse_attention finds them.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/definition.h"
#include "ops/names.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

struct OnnxAttentionOutput {
  enum : size_t { Y, PresentKey, PresentValue, Scores };
};

constexpr double kHiddenScore = -std::numeric_limits<double>::infinity();

// Extents of an operand by heads, whether it has an axis for them or not.
struct HeadExtents {
  int64_t samples, heads, rows, depth;
};

HeadExtents head_extents(const Node& node, size_t input, const TensorType& x) {
  const OperandSpec& spec = node.op->inputs[input];
  if (x.shape.size() == 4) return {x.shape[0], x.shape[1], x.shape[2], x.shape[3]};
  const char* attribute = input == OnnxAttentionInput::Q ? "q_num_heads" : "kv_num_heads";
  const int64_t heads = int_attribute(node, attribute);
  if (heads < 1 || x.shape[2] % heads != 0) {
    fail(node, fmt::format("attribute '{}' is {}; expected a divisor of {}, the last axis of '{}'", attribute, heads,
                           x.shape[2], spec.name));
  }
  return {x.shape[0], heads, x.shape[1], x.shape[2] / heads};
}

// Caches of earlier keys are of inference. The meaning of qk_matmul_output_mode depends on the version of ONNX.
void refuse_attention_caches(const InferContext& context) {
  using In = OnnxAttentionInput;
  using Out = OnnxAttentionOutput;
  const Node& node = context.node();
  for (const size_t i : {In::PastKey, In::PastValue, In::Lengths}) {
    if (node.input(i) != kNone) context.fail(fmt::format("{} is not supported", input_name(context, i)));
  }
  const Graph& graph = context.graph();
  const auto read = [&](ValueId value) {
    const auto has = [&](const std::vector<ValueId>& all) {
      return std::find(all.begin(), all.end(), value) != all.end();
    };
    return has(graph.outputs) ||
           std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& each) { return has(each.inputs); });
  };
  for (const size_t i : {Out::PresentKey, Out::PresentValue, Out::Scores}) {
    if (node.output(i) != kNone && read(node.output(i)))
      context.fail(fmt::format("output '{}' is not supported", node.op->outputs[i].name));
  }
}

// The mask spreads to the scores. Its last axis may be shorter; one of a single element would have two meanings.
void check_attention_mask(const InferContext& context, const Shape& scores) {
  using In = OnnxAttentionInput;
  const TensorType &mask = context.input(In::Mask), &q = context.input(In::Q);
  bool spreads = mask.dtype == DataType::Bool || mask.dtype == q.dtype;
  spreads = spreads && !mask.shape.empty() && mask.shape.size() <= scores.size();
  for (size_t i = 1; spreads && i <= mask.shape.size(); ++i) {
    const int64_t own = mask.shape[mask.shape.size() - i], whole = scores[scores.size() - i];
    spreads = own == whole || (i == 1 ? own > 1 && own < whole : own == 1);
  }
  if (spreads) return;
  context.fail(
      fmt::format("input 'attn_mask' is {}; expected bool or {} that spreads to {}, with as many keys or some less",
                  to_string(mask), name_of(q.dtype), to_string(scores)));
}

void check_attention_numbers(const InferContext& context) {
  const Node& node = context.node();
  flag_attribute(node, "is_causal");
  if (const double softcap = float_attribute(node, "softcap"); !(softcap >= 0 && std::isfinite(softcap)))
    context.fail(fmt::format("attribute 'softcap' is {}; expected a number of at least 0", softcap));
  const double scale = float_attribute(node, "scale");
  if (!(scale >= 0 && std::isfinite(scale)))
    context.fail(fmt::format("attribute 'scale' is {}; expected a number above 0, or 0 for 1/sqrt(size)", scale));
}

void infer_onnx_attention(InferContext& context) {
  using In = OnnxAttentionInput;
  using Out = OnnxAttentionOutput;
  const Node& node = context.node();
  check_attention_numbers(context);
  refuse_attention_caches(context);
  const TensorType& q = floating_input(context, In::Q, {3, 4});
  std::array<HeadExtents, 3> of;
  for (const size_t i : {In::Q, In::K, In::V}) {
    const TensorType& x = floating_input(context, i, {q.shape.size()});
    if (x.dtype != q.dtype) expect_input(context, i, {q.dtype, x.shape}, "the element type of 'Q'");
    of[i] = head_extents(node, i, x);
  }
  const auto [queries, keys, values] = of;
  if (keys.samples != queries.samples || keys.depth != queries.depth || keys.depth < 1 || keys.rows < 1) {
    context.fail(fmt::format("'Q' is {} and 'K' {}; expected as many samples, and heads of one size", to_string(q),
                             to_string(context.input(In::K))));
  }
  if (values.samples != keys.samples || values.rows != keys.rows || values.heads != keys.heads) {
    context.fail(fmt::format("'K' is {} and 'V' {}; expected as many samples, heads and rows",
                             to_string(context.input(In::K)), to_string(context.input(In::V))));
  }
  if (keys.heads < 1 || queries.heads % keys.heads != 0) {
    context.fail(
        fmt::format("'Q' has {} heads and 'K' {}; expected the same, or a divisor", queries.heads, keys.heads));
  }
  if (context.has_input(In::Mask))
    check_attention_mask(context, {queries.samples, queries.heads, queries.rows, keys.rows});
  const bool apart = q.shape.size() == 4;
  context.set_output(Out::Y, {q.dtype, apart ? Shape{queries.samples, queries.heads, queries.rows, values.depth}
                                             : Shape{queries.samples, queries.rows, queries.heads * values.depth}});
  const auto cache = [&](int64_t depth) { return TensorType{q.dtype, {keys.samples, keys.heads, keys.rows, depth}}; };
  if (node.output(Out::PresentKey) != kNone) context.set_output(Out::PresentKey, cache(keys.depth));
  if (node.output(Out::PresentValue) != kNone) context.set_output(Out::PresentValue, cache(values.depth));
  if (node.output(Out::Scores) != kNone)
    context.set_output(Out::Scores, {q.dtype, {queries.samples, queries.heads, queries.rows, keys.rows}});
}

class AttentionExpansion {
  using In = OnnxAttentionInput;
  using Out = OnnxAttentionOutput;

 public:
  explicit AttentionExpansion(ExpandContext& context)
      : context_(context),
        node_(context.node()),
        type_(context.type(context.input(In::Q)).dtype),
        q_(extents(In::Q)),
        k_(extents(In::K)) {}

  void run() {
    const double stated = float_attribute(node_, "scale"), scale = stated ? stated : 1 / std::sqrt(double(q_.depth));
    const ValueId factor = context_.constant("factor", type_, std::sqrt(scale));
    const ValueId queries = one("Mul", "queries", {heads(In::Q), factor});
    const ValueId columns = one("Transpose", "columns", {spread(heads(In::K), k_.depth)}, {{"perm", Ints{0, 1, 3, 2}}});
    ValueId scores = one("MatMul", "scores", {queries, one("Mul", "keys", {columns, factor})});
    if (const double softcap = float_attribute(node_, "softcap"); softcap != 0) {
      const ValueId cap = context_.constant("cap", type_, softcap);
      scores = one("Mul", "capped", {one("Tanh", "bent", {one("Div", "part", {scores, cap})}), cap});
    }
    ValueId weights = one("Softmax", "weights", {masked(scores)}, {{"axis", int64_t{-1}}});
    if (has_mask()) {  // a row of which no key is left has no weights
      const ValueId none = one("IsNaN", "none", {weights});
      weights = one("Where", "guarded", {none, context_.constant("zero", type_, 0), weights});
    }
    const ValueId values = spread(heads(In::V), extents(In::V).depth);
    if (apart()) return context_.replace_output(Out::Y, one("MatMul", "", {weights, values}));
    const ValueId result =
        one("Transpose", "rows", {one("MatMul", "product", {weights, values})}, {{"perm", Ints{0, 2, 1, 3}}});
    context_.replace_output(Out::Y, one("Reshape", "", {result}, {{"shape", Ints{0, 0, -1}}}));
  }

 private:
  bool apart() const { return context_.type(context_.input(In::Q)).shape.size() == 4; }
  bool has_mask() const { return context_.input(In::Mask) != kNone; }
  HeadExtents extents(size_t input) const { return head_extents(node_, input, context_.type(context_.input(input))); }

  ValueId one(const char* op, const char* label, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return context_.add(op, label, std::move(inputs), 1, std::move(attributes))[0];
  }

  // The operand as (samples, heads, rows, depth).
  ValueId heads(size_t input) {
    const ValueId x = context_.input(input);
    if (apart()) return x;
    const HeadExtents own = extents(input);
    const ValueId parts = one("Reshape", "parts", {x}, {{"shape", Ints{0, 0, own.heads, own.depth}}});
    return one("Transpose", "heads", {parts}, {{"perm", Ints{0, 2, 1, 3}}});
  }

  // Each head of keys and values, for all heads of queries that share it.
  ValueId spread(ValueId x, int64_t depth) {
    if (q_.heads == k_.heads) return x;
    const ValueId groups = one("Unsqueeze", "groups", {x}, {{"axes", Ints{2}}});
    const ValueId all = one("Expand", "shared", {groups}, {{"shape", Ints{q_.heads / k_.heads, 1, 1}}});
    return one("Reshape", "spread", {all}, {{"shape", Ints{0, q_.heads, k_.rows, depth}}});
  }

  ValueId hide(ValueId scores, ValueId seen, const char* label) {
    return one("Where", label, {seen, scores, context_.constant("hidden", type_, kHiddenScore)});
  }

  // Flags hide by Where, whose gradient is 0 in rows that see no key, although that of Softmax is no number there.
  ValueId masked(ValueId scores) {
    if (has_mask()) {
      const ValueId mask = lengthened(context_.input(In::Mask));
      const bool flags = context_.type(mask).dtype == DataType::Bool;
      scores = flags ? hide(scores, mask, "seen") : one("Add", "biased", {scores, mask});
    }
    if (flag_attribute(node_, "is_causal")) scores = hide(scores, causal(), "causal");
    return scores;
  }

  // Keys after the mask's last one are hidden.
  ValueId lengthened(ValueId mask) {
    const TensorType type = context_.type(mask);
    const int64_t lacking = k_.rows - type.shape.back(), axis = int64_t(type.shape.size()) - 1;
    if (lacking == 0) return mask;
    Attributes attributes = {{"axes", Ints{axis}}, {"pads", Ints{0, lacking}}};
    if (type.dtype != DataType::Bool) attributes.set("constant_value", kHiddenScore);
    return one("Pad", "lengthened", {mask}, attributes);
  }

  // Whether a query sees a key, (queries, keys): those up to its own place.
  ValueId causal() {
    const auto places = [&](const char* label, int64_t count, int64_t axis) {
      std::vector<double> numbers(static_cast<size_t>(count));
      std::iota(numbers.begin(), numbers.end(), 0.0);
      return one("Unsqueeze", label, {context_.constant(label, DataType::Int64, numbers)}, {{"axes", Ints{axis}}});
    };
    return one("GreaterOrEqual", "before", {places("row", q_.rows, 1), places("key", k_.rows, 0)});
  }

  ExpandContext& context_;
  const Node node_;
  const DataType type_;
  const HeadExtents q_, k_;
};

}  // namespace

void register_product_onnx_attention(OpRegistry& registry) {
  const auto optional = [](const char* name) { return plain(name, OperandSpec::Optional); };
  registry.add(
      {.domain = "",
       .name = "Attention",
       .doc = "scaled dot-product attention over heads; fused where its depth allows",
       .inputs = {lowered("Q"), lowered("K"), lowered("V"), optional("attn_mask"), optional("past_key"),
                  optional("past_value"), optional("nonpad_kv_seqlen")},
       .outputs = {lowered("Y"), optional("present_key"), optional("present_value"), optional("qk_matmul_output")},
       .attributes = {int_spec("q_num_heads", 0, "heads of Q if it has three axes"),
                      int_spec("kv_num_heads", 0, "heads of K and V if they have three axes"),
                      float_spec("scale", 0, "of scores; 0: 1/sqrt(size) of a head"),
                      int_spec("is_causal", 0, "1: a query sees no key after its own place"),
                      float_spec("softcap", 0, "bound of scores by tanh; 0: none"),
                      int_spec("softmax_precision", 0, "without effect: at least float"),
                      int_spec("qk_matmul_output_mode", 0, "without effect")},
       .infer = infer_onnx_attention,
       .expand = [](ExpandContext& context) { AttentionExpansion(context).run(); }});
}

}  // namespace arbalest
