// SPDX-License-Identifier: Apache-2.0
#pragma once
// The record of an operator: its signature, type inference, gradient, cost, samples and kernels, in one record.

#include <array>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/kernel.h"
#include "graph/metric.h"
#include "graph/optimizer.h"
#include "graph/preparation.h"

namespace arbalest {

// One of the inputs or outputs that an operator states.
struct OperandSpec {
  enum Arity : uint8_t { Required, Optional, Variadic };  // Variadic: last, one or more
  // The part of an operand in a model whose file stores its numbers. Weight to OwnWeight are trained or carried on, and
  // stand together.
  enum Part : uint8_t {
    Any,           // nothing in particular
    Weight,        // its parameter is called "weight"
    Scale,         // the scale of a norm, called "weight"; an operator that has one is a norm
    Bias,          // its parameter is called "bias"
    Mean,          // a norm's running mean, which training updates
    Variance,      // a norm's running variance, which training updates
    OwnWeight,     // its parameter has the operand's name
    InitialState,  // a recurrent layer's state before its first step; zeros if it is left out
    ClassWeight,   // weights of a loss's classes, which are not trained
  };
  std::string name = {};
  Arity arity = Required;
  // Whether the operand follows the compute precision (--precision bf16). What does not (statistics, losses, biases,
  // parameter gradients) stays as inferred.
  bool lowered = false;
  // Its content has to be known when the graph is read: axes, bounds, a shape. The operator has an attribute of the
  // same name, which replaces the operand if that is left out. Passes move the content there (fold_constants), so that
  // gradients and kernels read only the attribute. Such an operand is optional, unless Op::content follows from it.
  bool constant = false;
  Part part = Any;

  // The same operand with its part in a model.
  OperandSpec as(Part of_model) const {
    OperandSpec spec = *this;
    spec.part = of_model;
    return spec;
  }
};

// One of the attributes that an operator states.
struct AttributeSpec {
  std::string name = {};
  AttributeKind kind = AttributeKind::Int;
  std::optional<Attribute> fallback = {};  // none: required
  std::string doc = {};
  std::vector<std::string> choices = {};  // of a string; none: any
};

// Type inference: reads input types and attributes, sets every output's type.
class InferContext {
 public:
  // The node whose types are inferred.
  InferContext(Graph& graph, NodeId node) : graph_(graph), node_(node) {}
  const Graph& graph() const { return graph_; }                        // that the node is in
  const Node& node() const { return graph_.nodes[node_]; }             // whose types are inferred
  size_t input_count() const { return node().inputs.size(); }          // with those left out between others
  size_t output_count() const { return node().outputs.size(); }        // that were asked for
  bool has_input(size_t i) const { return node().input(i) != kNone; }  // false: left out
  const TensorType& input(size_t i) const { return graph_.values[node().inputs[i]].type; }  // of one that is there
  const Node* producer(size_t i) const;  // of input i; nullptr: no node makes it
  // The content of the constant operand `name` (OperandSpec), or the attribute of that name if the operand is left out.
  // Throws GraphError if the content is not known, is no list or number, or has another kind.
  std::vector<int64_t> ints(std::string_view name) const;
  std::vector<double> floats(std::string_view name) const;  // as ints() does
  int64_t integer(std::string_view name) const;             // as ints() does, one number
  double number(std::string_view name) const;               // as ints() does, one number
  bool states(std::string_view name) const;                 // the operand is given, or the attribute is written
  // The type takes the layout that Op::layout states, if it states one. Ignored if the output was not asked for.
  void set_output(size_t i, TensorType type);
  [[noreturn]] void fail(const std::string& message) const { arbalest::fail(node(), message); }  // throws GraphError

 private:
  Attribute constant(std::string_view name, AttributeKind kind) const;

  Graph& graph_;
  NodeId node_;
};

// Building gradient nodes. All added nodes get Stage::Backward.
class GradContext {
 public:
  // `output_gradients` has a value for each output of the node, `needs_gradient` an answer and `input_gradients` a
  // place for each input.
  GradContext(Graph& graph, NodeId node, const std::vector<ValueId>& output_gradients,
              const std::vector<bool>& needs_gradient, std::vector<ValueId>& input_gradients)
      : graph_(graph),
        node_(node),
        output_gradients_(output_gradients),
        needs_(needs_gradient),
        grads_(input_gradients) {}
  const Node node() const { return graph_.nodes[node_]; }                           // by value: add() may move nodes
  ValueId input(size_t i) const { return graph_.nodes[node_].input(i); }            // kNone: left out
  ValueId output(size_t i) const { return graph_.nodes[node_].output(i); }          // kNone: not made
  const TensorType type(ValueId value) const { return graph_.values[value].type; }  // by value, as node()
  ValueId output_gradient(size_t i) const { return output_gradients_[i]; }          // kNone: nothing flows back into it
  bool needs_gradient(size_t input) const { return needs_[input]; }  // whether anything asks for its gradient
  void set_input_gradient(size_t i, ValueId gradient) { grads_[i] = gradient; }  // of the input's type
  // Adds a node of the registered op (domain "arbalest" or ONNX's, as in "arbalest.ReluGrad", "Add"), infers its types,
  // and returns its outputs. Names are made from the forward node's name and `label`: "h1/c1.grad_input".
  std::vector<ValueId> add(std::string_view op, std::string_view label, std::vector<ValueId> inputs, int output_count,
                           Attributes attributes = {});
  // Makes the gradient of the first input, if anything asks for it, by a node of `op` that reads the gradient of the
  // first output and then `more`.
  void add_input_gradient(std::string_view op, std::vector<ValueId> more = {}, Attributes attributes = {});

 private:
  Graph& graph_;
  NodeId node_;
  const std::vector<ValueId>& output_gradients_;
  const std::vector<bool>& needs_;
  std::vector<ValueId>& grads_;
};

// Rewriting a layer (an op that owns parameters) into operators with explicit parameters, or a fused operator into
// simpler ones.
class ExpandContext {
 public:
  // `replaced` receives the replacement of each of the node's outputs. The caller redirects the
  // readers.
  ExpandContext(Graph& graph, const Node& node, Table<ValueId, ValueId>& replaced)
      : graph_(graph), node_(node), replaced_(replaced) {}
  const Graph& graph() const { return graph_; }                                     // that the layer is in
  const Node& node() const { return node_; }                                        // the layer
  ValueId input(size_t i) const { return node_.input(i); }                          // kNone: left out
  const TensorType type(ValueId value) const { return graph_.values[value].type; }  // of any value
  // A trained parameter named "<first output>.<label>": "h1/c1.weight".
  ValueId parameter(std::string_view label, Shape shape, Initializer initializer);
  ValueId state(std::string_view label, Shape shape, Initializer initializer);  // as parameter(), not trained
  // A scalar of the type `dtype`.
  ValueId constant(std::string_view label, DataType dtype, double number);
  // A list of floats or of Int64.
  ValueId constant(std::string_view label, DataType dtype, const std::vector<double>& numbers);
  // Adds a node named "<node name>" or "<node name>.<label>" and infers its types.
  std::vector<ValueId> add(std::string_view op, std::string_view label, std::vector<ValueId> inputs, int output_count,
                           Attributes attributes = {});
  // `next` becomes `current` in the following iteration (running statistics). Makes `current` a state, even if a file
  // gave it as one of its initial values, which are parameters otherwise.
  void carry(ValueId current, ValueId next) {
    Role& role = graph_.values[current].role;
    if (role == Role::Parameter) role = Role::State;
    graph_.carries.push_back({current, next});
  }
  // States the value that the readers of output i read from now on.
  void replace_output(size_t i, ValueId value);
  [[noreturn]] void fail(const std::string& message) const { arbalest::fail(node_, message); }  // throws GraphError

 private:
  Graph& graph_;
  Node node_;  // a copy: the node itself is removed afterwards
  Table<ValueId, ValueId>& replaced_;
};

// The least work of a node.
struct Cost {
  double flops = 0;  // additions and multiplications of one instance
  double bytes = 0;  // least device-memory traffic: each operand once
};

// An element of output 0 as a function of the elements at the same place of inputs that broadcast to it.
// Regions are made of operators that say so (ops/regions/region.h); they compute in float what has float or bfloat16
// elements.
struct ElementFunction {
  // Computes `count` neighbouring elements. `numbers`: the node's alpha and beta. Of input `still`, from 0, all
  // elements are the first; −1: there is none such.
  using Row = void (*)(const void* numbers, int64_t count, void* out, const void* const* in, int still);

  std::string text;                    // an expression of C++ in W, the type of arithmetic, alpha and beta
  std::vector<std::string> arguments;  // what the text calls the inputs
  Row floats = nullptr, doubles = nullptr;
  std::function<std::array<double, 2>(const Node&)> numbers;  // alpha and beta; none: zeros
};

// How an operator combines single numbers, whatever their shapes.
enum class Arithmetic : uint8_t {
  Other,
  Keeps,     // the first of them: Reshape, ReduceMax
  Adds,      // sums and differences
  Averages,  // their mean
  Scales,    // their product
  Divides,   // the first divided by the second
};

// A sum over axes of input 0.
struct AxisSum {
  std::vector<int64_t> strides;  // from one element of the result to the next along each axis of the input
  double scale = 1;              // of the sum
};

// The computation of outputs of a node once more, to the same bits, from its inputs and from outputs that are kept.
struct Repetition {
  const Op* op = nullptr;  // nullptr: the node cannot be computed again
  std::vector<ValueId> inputs;
  Attributes attributes;
  std::vector<ValueId> outputs;  // the node's outputs that are made again, in the order of the repetition's own
  bool view = false;             // its output lies in its input's memory
};

// One test case of the harness: shapes, attributes and how inputs are drawn.
struct Sample {
  // An input and how its elements are drawn.
  struct Input {
    TensorType type = {};        // Float32 if the op computes; the harness redraws it in Float64 for the oracle
    double low = -1, high = 1;   // uniform; integer types draw whole numbers in [low, high]
    bool differentiable = true;  // checked against finite differences (floating inputs only)
    bool distinct = false;       // values all different and apart, for MaxPool-like ties
  };
  std::string name = {};
  std::vector<Input> inputs = {};
  int output_count = 1;
  Attributes attributes = {};
  double tolerance = 1e-5;   // ‖out − oracle‖ / ‖oracle‖ in float; the harness widens it for TF32 and bf16
  StepScalars scalars = {};  // what kernels read per instance
  bool in_place = false;     // only with outputs in their inputs' memory (Op::aliases): some of it is left as it is
};

// An operator: all that graph files, passes, plans and devices know of it.
struct Op {
  std::string domain = {};  // "" for ONNX's operators, "arbalest" for this library's, or a program's own
  std::string name = {};
  std::string doc = {};  // one line; `arbalest ops` and error messages use it
  std::vector<OperandSpec> inputs = {};
  std::vector<OperandSpec> outputs = {};
  std::vector<AttributeSpec> attributes = {};
  bool internal = false;     // made by passes only; refused in graph files
  bool side_effect = false;  // produces a token or updates state: never dead
  bool random = false;       // draws numbers of its own in each iteration: not computed when a graph is read
  bool collective =
      false;  // spans devices: its CUDA kernel takes a CollectiveContext (ops/replicas/collective_context.h)

  // How all operands of rank 3 or more lie in memory: passes convert inputs that lie otherwise. None: inputs are taken
  // as they lie, kernels look at their types, and `infer` says how outputs lie.
  std::optional<Layout> layout = Layout::RowMajor;

  std::function<void(InferContext&)> infer = nullptr;
  // The content of output 0, row-major elements of its type, if it follows from types, attributes and constant operands
  // alone: Shape, Range. Such an operator needs no kernel, and its constant operands no attributes.
  std::function<std::vector<std::byte>(const InferContext&)> content = nullptr;
  std::function<void(GradContext&)> grad = nullptr;            // none: gradients stop here
  std::function<void(ExpandContext&)> expand = nullptr;        // such an op has no kernels, unless `expands` is there
  std::function<bool(const InferContext&)> expands = nullptr;  // whether this node is expanded; the others have kernels
  bool is_layer() const { return expand && !expands; }         // every node of it is expanded
  // Whether the expansion may make values, such as parameters, whose names begin with the node's output.
  bool owns_values() const { return bool(expand); }
  // A fused operator in terms of simpler ones: adds nodes of them and replaces every output. It says what the operator
  // means. Kernels are held against it, and CPUs run it if they gain nothing by a kernel (ops/fused/decomposed.h).
  std::function<void(ExpandContext&)> decompose = nullptr;
  // Rewrites the node in place for validation; none: as it is.
  std::function<void(Graph&, NodeId)> for_inference = nullptr;
  // How outputs of a node are computed once more. None: as they were, unless the operator draws random numbers or
  // changes what outlives the iteration; such operators are not repeated.
  std::function<Repetition(const Graph&, const Node&)> again = nullptr;
  std::function<Cost(const Graph&, const Node&)> cost = nullptr;  // none: no flops, operands once
  std::function<std::vector<Sample>()> samples = nullptr;

  std::optional<MetricSpec> metric = {};        // of output 0, if Validate may list it
  std::optional<Comparison> compares = {};      // what a loss or a metric compares; none: it is neither
  std::optional<OptimizerSpec> optimizer = {};  // the operator is the update rule of an optimiser

  // Outputs that reuse an input's memory, as (output, input): views, in-place updates of state.
  std::vector<std::pair<int, int>> aliases = {};
  // Outputs that may take an input's memory if nothing reads that input afterwards, as (output, input). Both have the
  // same type, and kernels read each element for the last time before they write it.
  std::vector<std::pair<int, int>> overwrites = {};

  KernelFactory cpu = nullptr;
  KernelFactory cuda = nullptr;
  PreparationFactory prepare = nullptr;  // a host node: one input, a field of bytes, and one output; it has no kernels

  std::optional<ElementFunction> element = std::nullopt;  // what each element of output 0 is, if nothing else matters
  // Output 0 as a sum of input 0 of type x, in memory of type y. None: it is no such sum.
  std::function<AxisSum(const Node&, const TensorType& x, const TensorType& y)> sum = nullptr;
  Arithmetic arithmetic = Arithmetic::Other;
  bool reshapes = false;    // output 0 has the elements of input 0 in row-major order, in another shape
  bool normalises = false;  // values along axes of input 0 from `axis` on, or of one of `groups`, share one mean
  // Normalises each channel by the batch's statistics. Inputs 1 to 4 are scale, bias, running mean and running
  // variance, and outputs 1 and 2 the new running ones.
  bool keeps_statistics = false;
  // Before ONNX's opset 13 all axes of input 0 from the attribute `axis` on, by default 1, counted as one.
  bool took_axes_as_one = false;

  const OperandSpec* input_spec(size_t i) const;   // the variadic spec for all that follow; nullptr past the end
  const OperandSpec* output_spec(size_t i) const;  // the same for outputs
  const AttributeSpec* attribute_spec(std::string_view name) const;                           // nullptr: there is none
  std::string qualified_name() const { return domain.empty() ? name : domain + "." + name; }  // "arbalest.Linear"
  bool is(std::string_view qualified_name) const;                                             // whether it is this one
};

// Bytes of all operands of a node, each once.
double operand_bytes(const Graph& graph, const Node& node);
// The least work of a node: what its operator says, else each operand once.
Cost cost_of(const Graph& graph, const Node& node);

// Operators by name. All of it may be called from any thread; what is returned stays valid.
class OpRegistry {
 public:
  // Throws GraphError if the name is taken.
  Op& add(Op op);
  // "Relu", "arbalest.Linear"; nullptr if there is none.
  const Op* find(std::string_view qualified_name) const;
  Op* find(std::string_view qualified_name);  // to change its record
  // As find(), but throws std::logic_error: for code that names an op which must exist.
  const Op& get(std::string_view qualified_name) const;
  // In the order in which they were added.
  std::vector<std::reference_wrapper<const Op>> all() const;
  // The update rule that arbalest.Train's attribute `optimizer` calls `name`; nullptr if there is none.
  const Op* find_optimizer(std::string_view name) const;

 private:
  mutable std::mutex mutex_;
  std::deque<Op> ops_;  // a deque: addresses stay
};

// Throws GraphError if the record lacks something that every operator needs, or contradicts itself.
void check_record(const Op& op);

}  // namespace arbalest
