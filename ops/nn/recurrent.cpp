// SPDX-License-Identifier: Apache-2.0

// RNN, GRU and LSTM, ONNX's recurrent layers: each becomes the operators of all its steps. The product of the inputs
// and W is made once for all steps. Equations and orders of gates are those of https://onnx.ai/onnx/operators/.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/definition.h"

namespace arbalest {
namespace {

struct RecurrentInput {
  enum : size_t { X, W, R, B, Lengths, InitialH, InitialC, P };
};
struct RecurrentOutput {
  enum : size_t { Y, LastH, LastC };
};

// Activations without numbers of their own.
constexpr std::array<const char*, 5> kActivations = {"Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"};

// An operator's step: the number of its gates, and its activations in ONNX's order.
struct Recurrence {
  const char* name;
  int64_t gates;
  std::vector<std::string> activations;
};

const Recurrence& recurrence_of(const Node& node) {
  static const std::array<Recurrence, 3> all = {Recurrence{"RNN", 1, {"Tanh"}},
                                                Recurrence{"GRU", 3, {"Sigmoid", "Tanh"}},
                                                Recurrence{"LSTM", 4, {"Sigmoid", "Tanh", "Tanh"}}};
  return *std::find_if(all.begin(), all.end(), [&](const Recurrence& each) { return node.op->name == each.name; });
}

int64_t directions_of(const Node& node) {
  return string_attribute(node, "direction") == "bidirectional" ? 2 : 1;
}

// The activations of all directions, checked.
std::vector<std::string> activations_of(const Node& node) {
  const Recurrence& recurrence = recurrence_of(node);
  std::vector<std::string> all, given = strings_attribute(node, "activations");
  for (int64_t i = 0; i < directions_of(node); ++i) {
    all.insert(all.end(), recurrence.activations.begin(), recurrence.activations.end());
  }
  if (given.empty()) return all;
  if (given.size() != all.size()) {
    fail(node, fmt::format("attribute 'activations' has {} names; expected {}, as of {} in each direction",
                           given.size(), all.size(), fmt::join(recurrence.activations, ", ")));
  }
  for (const std::string& name : given) {
    const bool known = std::find(kActivations.begin(), kActivations.end(), name) != kActivations.end();
    if (!known)
      fail(node, fmt::format("attribute 'activations' names '{}'; expected {}", name, fmt::join(kActivations, ", ")));
  }
  return given;
}

void refuse_attributes(const Node& node) {
  for (const char* name : {"activation_alpha", "activation_beta", "clip"}) {
    if (is_given(node, *node.op->attribute_spec(name)))
      fail(node, fmt::format("attribute '{}' is not supported", name));
  }
  activations_of(node);
}

// Lengths that a file states, and no data set.
void check_lengths(const InferContext& context, int64_t steps) {
  const Value& lengths = context.graph().values[context.node().inputs[RecurrentInput::Lengths]];
  if (lengths.initializer.kind != Initializer::Kind::Data) return;
  const std::vector<std::byte>& bytes = *lengths.initializer.data;
  for (size_t at = 0; at < bytes.size(); at += sizeof(int32_t)) {
    int32_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    if (length >= 0 && length <= steps) continue;
    context.fail(fmt::format("input 'sequence_lens', element {}: found {}, expected 0 to {}, the steps of 'X'",
                             at / sizeof length, length, steps));
  }
}

// The attribute may be left out here, but not everywhere.
void state_hidden_size(Graph& graph, NodeId id) {
  Node& node = graph.nodes[id];
  node.attributes.set("hidden_size", graph.values[node.inputs[RecurrentInput::R]].type.shape[2], node.where);
}

// X is [steps, samples, features], or [samples, steps, features] with `layout` 1.
void infer_recurrent(InferContext& context) {
  const Node& node = context.node();
  refuse_attributes(node);
  const TensorType& x = floating_input(context, RecurrentInput::X, {3});
  const bool samples_first = flag_attribute(node, "layout");
  const int64_t steps = x.shape[samples_first ? 1 : 0], samples = x.shape[samples_first ? 0 : 1];
  const int64_t directions = directions_of(node), gates = recurrence_of(node).gates;
  const int64_t stated = int_attribute_from(node, "hidden_size", 0);
  const Shape& r = floating_input(context, RecurrentInput::R, {3}).shape;
  const int64_t hidden = stated ? stated : r[2];
  if (steps < 1) context.fail("input 'X' has no step");
  const auto expect = [&](size_t i, DataType type, const Shape& shape, std::string_view why) {
    if (context.has_input(i)) expect_input(context, i, {type, shape}, why);
  };
  const std::string why = fmt::format("for {} gates and states of {} elements, as {}", gates, hidden,
                                      stated ? "'hidden_size' says" : "the last axis of 'R' has");
  expect(RecurrentInput::R, x.dtype, {directions, gates * hidden, hidden}, why);
  expect(RecurrentInput::W, x.dtype, {directions, gates * hidden, x.shape[2]}, why);
  expect(RecurrentInput::B, x.dtype, {directions, 2 * gates * hidden}, why);
  expect(RecurrentInput::Lengths, DataType::Int32, {samples}, "a number of steps for each sample");
  if (context.has_input(RecurrentInput::Lengths)) check_lengths(context, steps);
  const Shape state = samples_first ? Shape{samples, directions, hidden} : Shape{directions, samples, hidden};
  expect(RecurrentInput::InitialH, x.dtype, state, "as a state of the layer");
  expect(RecurrentInput::InitialC, x.dtype, state, "as a state of the layer");
  expect(RecurrentInput::P, x.dtype, {directions, 3 * hidden}, why);
  context.set_output(0, {x.dtype, samples_first ? Shape{samples, steps, directions, hidden}
                                                : Shape{steps, directions, samples, hidden}});
  for (size_t i = 1; i < context.output_count(); ++i) context.set_output(i, {x.dtype, state});
}

class Expansion {
 public:
  explicit Expansion(ExpandContext& context)
      : context_(context),
        node_(context.node()),
        recurrence_(recurrence_of(node_)),
        activations_(activations_of(node_)),
        type_(context.type(context.input(RecurrentInput::X)).dtype),
        directions_(directions_of(node_)),
        samples_first_(flag_attribute(node_, "layout")) {}

  void run() {
    const ValueId x =
        samples_first_ ? transposed(context_.input(RecurrentInput::X), {1, 0, 2}) : context_.input(RecurrentInput::X);
    const bool reverse = string_attribute(node_, "direction") == "reverse";
    std::vector<ValueId> all, last_h, last_c;
    for (direction_ = 0; direction_ < directions_; ++direction_) {
      const std::vector<ValueId> hidden = steps_of(x, reverse || direction_ == 1);
      if (wants(RecurrentOutput::Y)) all.push_back(one("Concat", hidden, {{"axis", int64_t{samples_first_}}}));
      const std::vector<int64_t> axis = {int64_t{samples_first_}};
      if (wants(RecurrentOutput::LastH)) last_h.push_back(one("Unsqueeze", {state_.h}, {{"axes", axis}}));
      if (wants(RecurrentOutput::LastC)) last_c.push_back(one("Unsqueeze", {state_.c}, {{"axes", axis}}));
    }
    if (wants(RecurrentOutput::Y)) context_.replace_output(RecurrentOutput::Y, together(all, samples_first_ ? 2 : 1));
    if (wants(RecurrentOutput::LastH))
      context_.replace_output(RecurrentOutput::LastH, together(last_h, samples_first_));
    if (wants(RecurrentOutput::LastC))
      context_.replace_output(RecurrentOutput::LastC, together(last_c, samples_first_));
  }

 private:
  struct State {
    ValueId h = kNone, c = kNone;  // kNone: zeros
  };

  // The outputs of each step of the direction, with axes for step and direction; leaves the last state.
  std::vector<ValueId> steps_of(ValueId x, bool reverse) {
    label_ = reverse ? "back" : "step";
    r_ = part(RecurrentInput::R, 0);
    r_parts_ = recurrence_.gates == 3 && !resets_after() ? split(r_, gates_of_gru(), 0) : std::vector<ValueId>();
    peepholes_ = has(RecurrentInput::P) ? split(part(RecurrentInput::P, 0), 3, 0) : std::vector<ValueId>();
    state_ = {part(RecurrentInput::InitialH, samples_first_), part(RecurrentInput::InitialC, samples_first_)};
    ValueId inputs = one("MatMul", {x, transposed(part(RecurrentInput::W, 0), {1, 0})});
    r_bias_ = kNone;
    if (has(RecurrentInput::B)) {
      const std::vector<ValueId> biases = split(part(RecurrentInput::B, 0), 2, 0);
      if (resets_after()) r_bias_ = biases[1];
      inputs = add(inputs, resets_after() ? biases[0] : add(biases[0], biases[1]));
    }
    const int64_t count = context_.type(x).shape[0];
    const std::vector<ValueId> of_steps = split(inputs, count, 0);
    std::vector<ValueId> hidden(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t step = reverse ? count - 1 - i : i;
      label_ = fmt::format("{}{}", reverse ? "back" : "step", step);
      const ValueId gates = one("Squeeze", {of_steps[size_t(step)]}, {{"axes", std::vector<int64_t>{0}}});
      // With one step and no state before it nothing would read R, and R would have no gradient.
      if (count == 1 && state_.h == kNone) state_.h = zeros_like(split(gates, recurrence_.gates, 1)[0]);
      const State before = state_;
      state_ = after(before, gates);
      ValueId told = state_.h;
      if (has(RecurrentInput::Lengths)) told = mask(step, before);
      const std::vector<int64_t> axes = samples_first_ ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{0, 1};
      if (wants(RecurrentOutput::Y)) hidden[size_t(step)] = one("Unsqueeze", {told}, {{"axes", axes}});
    }
    return hidden;
  }

  // Samples that have ended keep the state `before`. Returns the output of the step, zeros for these samples.
  ValueId mask(int64_t step, const State& before) {
    const ValueId number = context_.constant("step", DataType::Int32, double(step));
    const ValueId goes_on = one("Unsqueeze", {one("Less", {number, context_.input(RecurrentInput::Lengths)})},
                                {{"axes", std::vector<int64_t>{1}}});
    const ValueId zero = context_.constant("zero", type_, 0);
    const auto chosen = [&](ValueId next, ValueId otherwise) {
      return next == kNone ? kNone : one("Where", {goes_on, next, otherwise == kNone ? zero : otherwise});
    };
    const ValueId told = chosen(state_.h, kNone);
    state_ = {before.h == kNone ? told : chosen(state_.h, before.h), chosen(state_.c, before.c)};
    return told;
  }

  // The state after a step. `gates`: what its inputs add to all gates.
  State after(const State& before, ValueId gates) {
    if (recurrence_.gates == 1) return {activation(0, add(gates, recurrent(before.h, r_, r_bias_)))};
    if (recurrence_.gates == 4) return after_lstm(before, split(add(gates, recurrent(before.h, r_, r_bias_)), 4, 1));
    return {after_gru(before.h, gates)};
  }

  State after_lstm(const State& before, const std::vector<ValueId>& gates) {
    const auto peep = [&](ValueId gate, ValueId cell, size_t which) {
      return peepholes_.empty() || cell == kNone ? gate : add(gate, one("Mul", {peepholes_[which], cell}));
    };
    const ValueId in = activation(0, peep(gates[0], before.c, 0)), fresh = activation(1, gates[3]);
    ValueId cell = one("Mul", {in, fresh});
    if (before.c != kNone) {
      const bool coupled = flag_attribute(node_, "input_forget");
      const ValueId keep = coupled ? complement(in) : activation(0, peep(gates[2], before.c, 2));
      cell = add(one("Mul", {keep, before.c}), cell);
    }
    const ValueId out = activation(0, peep(gates[1], cell, 1));
    return {one("Mul", {out, activation(2, cell)}), cell};
  }

  ValueId after_gru(ValueId before, ValueId gates) {
    const std::vector<ValueId> own = split(gates, 3, 1);  // of the update gate, the reset gate and the new state
    std::vector<ValueId> recurring(3, kNone);             // what the state before adds
    if (resets_after()) {
      const ValueId all = recurrent(before, r_, r_bias_);
      if (all != kNone) recurring = split(all, std::vector<int64_t>(3, context_.type(r_).shape[1]), -1);
    } else if (before != kNone) {
      recurring = split(recurrent(before, r_parts_[0], kNone), 2, 1);
    }
    const auto gate = [&](size_t which) { return activation(0, add(own[which], recurring[which])); };
    ValueId fresh = own[2];
    if (!resets_after() && before != kNone) {
      fresh = add(fresh, recurrent(one("Mul", {gate(1), before}), r_parts_[1], kNone));
    } else if (resets_after() && recurring[2] != kNone) {
      fresh = add(fresh, one("Mul", {gate(1), recurring[2]}));
    }
    const ValueId update = gate(0);
    const ValueId next = one("Mul", {complement(update), activation(1, fresh)});
    return before == kNone ? next : add(next, one("Mul", {update, before}));
  }

  // The hidden state's part of gates; kNone: there is none.
  ValueId recurrent(ValueId h, ValueId r, ValueId bias) {
    if (h == kNone) return bias;
    std::vector<ValueId> inputs = {h, r};
    if (bias != kNone) inputs.push_back(bias);
    return one("Gemm", std::move(inputs), {{"transB", int64_t{1}}});
  }

  // Rows of R: for the update and the reset gate, and for the new state.
  std::vector<int64_t> gates_of_gru() const {
    const int64_t hidden = context_.type(r_).shape[1];
    return {2 * hidden, hidden};
  }

  bool resets_after() const { return recurrence_.gates == 3 && flag_attribute(node_, "linear_before_reset"); }
  bool has(size_t input) const { return context_.input(input) != kNone; }
  bool wants(size_t output) const { return node_.output(output) != kNone; }

  ValueId one(const char* op, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return context_.add(op, label_, std::move(inputs), 1, std::move(attributes))[0];
  }
  ValueId add(ValueId a, ValueId b) { return b == kNone ? a : one("Add", {a, b}); }
  ValueId zeros_like(ValueId x) { return one("Mul", {x, context_.constant("zero", type_, 0)}); }
  ValueId complement(ValueId x) { return one("Sub", {context_.constant("one", type_, 1), x}); }
  ValueId transposed(ValueId x, std::vector<int64_t> perm) {
    return one("Transpose", {x}, {{"perm", std::move(perm)}});
  }
  ValueId activation(size_t which, ValueId x) {
    const size_t each = recurrence_.activations.size();
    return one(activations_[size_t(direction_) * each + which].c_str(), {x});
  }

  std::vector<ValueId> split(ValueId x, const std::vector<int64_t>& extents, int64_t axis) {
    return context_.add("Split", label_, {x}, int(extents.size()), {{"axis", axis}, {"split", extents}});
  }
  std::vector<ValueId> split(ValueId x, int64_t count, int64_t axis) {
    const Shape& shape = context_.type(x).shape;
    return split(x, std::vector<int64_t>(size_t(count), shape[size_t(axis)] / count), axis);
  }

  // An operand's part of this direction, which lies along `axis`.
  ValueId part(size_t input, int64_t axis) {
    if (!has(input)) return kNone;
    ValueId whole = context_.input(input);
    if (directions_ == 2) whole = split(whole, 2, axis)[size_t(direction_)];
    return one("Squeeze", {whole}, {{"axes", std::vector<int64_t>{axis}}});
  }

  ValueId together(const std::vector<ValueId>& parts, int64_t axis) {
    return parts.size() == 1 ? parts[0] : one("Concat", parts, {{"axis", axis}});
  }

  ExpandContext& context_;
  const Node node_;
  const Recurrence& recurrence_;
  const std::vector<std::string> activations_;
  const DataType type_;
  const int64_t directions_;
  const bool samples_first_;
  int64_t direction_ = 0;
  std::string label_ = "all";  // of nodes: the step
  ValueId r_ = kNone, r_bias_ = kNone;
  std::vector<ValueId> r_parts_;    // of a GRU whose reset gate comes before the product
  std::vector<ValueId> peepholes_;  // for input, output and forget gate
  State state_;
};

}  // namespace

void register_nn_recurrent(OpRegistry& registry) {
  const auto add = [&](const char* name, const char* doc, bool cells, std::vector<AttributeSpec> own) {
    AttributeSpec direction = string_spec("direction", "forward", "in which steps follow each other");
    direction.choices = {"forward", "reverse", "bidirectional"};
    Op op{.domain = "",
          .name = name,
          .doc = doc,
          .inputs = {plain("X"), plain("W").as(OperandSpec::OwnWeight), plain("R").as(OperandSpec::OwnWeight),
                     plain("B", OperandSpec::Optional).as(OperandSpec::OwnWeight),
                     plain("sequence_lens", OperandSpec::Optional),
                     plain("initial_h", OperandSpec::Optional).as(OperandSpec::InitialState)},
          .outputs = {plain("Y", OperandSpec::Optional), plain("Y_h", OperandSpec::Optional)},
          .attributes = {direction, int_spec("hidden_size", 0, "elements of a state; 0: as R has them"),
                         strings_spec("activations", {}, "Relu, Sigmoid, Softplus, Softsign or Tanh for each gate"),
                         int_spec("layout", 0, "1: samples before steps, and before directions"),
                         floats_spec("activation_alpha", {}, "not supported"),
                         floats_spec("activation_beta", {}, "not supported"), float_spec("clip", 0, "not supported")},
          .infer = infer_recurrent,
          .expand = [](ExpandContext& context) { Expansion(context).run(); },
          .for_inference = state_hidden_size};
    if (cells) {
      op.inputs.push_back(plain("initial_c", OperandSpec::Optional).as(OperandSpec::InitialState));
      op.inputs.push_back(plain("P", OperandSpec::Optional).as(OperandSpec::OwnWeight));
      op.outputs.push_back(plain("Y_c", OperandSpec::Optional));
    }
    op.attributes.insert(op.attributes.end(), own.begin(), own.end());
    registry.add(std::move(op));
  };
  add("RNN", "a recurrent layer with one gate, step by step", false, {});
  add("GRU", "a recurrent layer of gated units, step by step", false,
      {int_spec("linear_before_reset", 0, "1: the reset gate scales the product with R, not what is multiplied")});
  add("LSTM", "a recurrent layer with cells of long short-term memory, step by step", true,
      {int_spec("input_forget", 0, "1: the forget gate is 1 less the input gate")});
}

}  // namespace arbalest
