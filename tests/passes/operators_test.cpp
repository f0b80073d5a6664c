// SPDX-License-Identifier: Apache-2.0

// Every operator's samples in small nets, which are trained with all passes and without each optional one.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <regex>
#include <set>

#include "ops/builtin_ops.h"
#include "ops/norm/batch_norms.h"
#include "passes/autodiff.h"
#include "passes/pipeline.h"
#include "tests/part.h"
#include "tests/passes/program_numbers.h"
#include "tests/structure/sources.h"

using namespace arbalest;
using namespace arbalest::test;

namespace operators_test {
namespace {

// The surroundings of an operator: none, elementwise operators with operands that broadcast, or moves of elements.
enum class Around : uint8_t { Nothing, Elements, Moves };

// A graph with the operator of a sample. Inputs are parameters if they get gradients, and frozen otherwise; the loss is
// made of all outputs that pass gradients on, so the graph trains.
class SampleNet {
 public:
  SampleNet(const Op& op, const Sample& sample, Around around) : op_(op), sample_(sample), around_(around) {
    trained_.assign(sample.inputs.size(), bool(op.grad || op.expand));
    counted_ = size_t(sample.output_count);
    build();
    while (!settle()) build();
  }

  const Graph& graph() const { return graph_; }
  const std::vector<std::string>& outputs() const { return outputs_; }  // what the net makes of the operator's

 private:
  ValueId add(std::string_view op, const std::string& name, std::vector<ValueId> inputs, Attributes attributes = {}) {
    const NodeId node = graph_.add_node(graph_.op(op), name, std::move(inputs), 1, std::move(attributes));
    infer(graph_, node);
    return graph_.nodes[node].outputs[0];
  }

  ValueId stored(const std::string& name, TensorType type, Role role, const std::vector<double>& elements) {
    const ValueId value = graph_.add_value(name, type, role);
    graph_.values[value].initializer = {
        Initializer::Kind::Data, 0, std::make_shared<const std::vector<std::byte>>(make_tensor(type, elements).bytes)};
    return value;
  }

  ValueId drawn(const std::string& name, const Shape& shape, Role role) {
    std::mt19937 random(uint32_t(std::hash<std::string>{}(name)));
    std::uniform_real_distribution<double> uniform(-1, 1);
    std::vector<double> elements(size_t(element_count(shape)));
    for (double& element : elements) element = uniform(random);
    return stored(name, {DataType::Float32, shape}, role, elements);
  }

  static std::vector<int64_t> reversed(size_t rank) {
    std::vector<int64_t> axes(rank);
    for (size_t i = 0; i < rank; ++i) axes[i] = int64_t(rank - 1 - i);
    return axes;
  }

  ValueId input(size_t i, const Tensor& drawn) {
    if (drawn.type.dtype == DataType::Token) return kNone;
    TensorType type{drawn.type.dtype, drawn.type.shape};
    const bool floats = type.dtype == DataType::Float32;
    const Role role = !floats ? Role::Constant : trained_[i] ? Role::Parameter : Role::Frozen;
    const std::string name = fmt::format("p{}", i);
    const size_t rank = type.shape.size();
    if (const size_t state = i - BatchNormInput::Mean; op_.keeps_statistics && state < 2) {
      return statistics_[state] = stored(name, type, Role::State, values_of(drawn));
    }
    if (!op_.layout && drawn.type.layout == Layout::ChannelsLast) {
      return add("arbalest.ChangeLayout", name + ".layout", {stored(name, type, role, values_of(drawn))},
                 {{"to", std::string(name_of(drawn.type.layout))}});
    }
    if (around_ == Around::Moves && rank > 1) {
      std::reverse(type.shape.begin(), type.shape.end());
      return add("Transpose", name + ".turned", {stored(name, type, role, values_of(drawn))},
                 {{"perm", reversed(rank)}});
    }
    const ValueId value = stored(name, type, role, values_of(drawn));
    if (around_ != Around::Elements || !floats) return value;
    Shape shift(rank > 2 ? rank - 1 : std::min<size_t>(rank, 1), 1);
    if (rank > 0) shift[0] = rank > 2 ? type.shape[1] : type.shape.back();
    const std::vector<double> zeros(size_t(element_count(shift)));
    return add("Add", name + ".shifted", {value, stored(name + ".shift", {DataType::Float32, shift}, role, zeros)});
  }

  // Returns what the net makes of output k: floats of any shape.
  ValueId after(size_t k, ValueId output) {
    const std::string name = fmt::format("y{}", k);
    const TensorType type = graph_.values[output].type;
    ValueId made = output;
    if (type.dtype != DataType::Float32)
      made = add("Cast", name + ".float", {made}, {{"to", onnx_number(DataType::Float32)}});
    if (around_ == Around::Elements) {
      const ValueId skipped = drawn(name + ".skip", type.shape, k < counted_ ? Role::Parameter : Role::Frozen);
      // Images go through Relu first, as after convolutions; elsewhere a sum comes first, as a bias.
      const bool image = type.shape.size() > 3;
      if (image) made = add("Relu", name + ".relu", {made});
      made = add("Add", name + ".sum", {made, skipped});
      made = add(image ? "Sigmoid" : "Relu", name + ".end", {made});
    } else if (around_ == Around::Moves && type.shape.size() > 1) {
      made = add("Transpose", name + ".turned", {made}, {{"perm", reversed(type.shape.size())}});
      made = add("Reshape", name + ".flat", {made}, {{"shape", std::vector<int64_t>{-1}}});
    }
    return made;
  }

  void build() {
    graph_ = Graph();
    graph_.registry = &builtin_ops();
    graph_.name = "net";
    graph_.opsets = {{"", 17}, {"arbalest", 1}};
    outputs_.clear();
    const Shape* first = sample_.inputs.empty() ? nullptr : &sample_.inputs[0].type.shape;
    const int64_t batch = op_.compares && first && !first->empty() ? std::max<int64_t>(1, first->at(0)) : 2;
    graph_.add_node(graph_.op("arbalest.Prefetch"), "data", {}, 1,
                    {{"source", std::string("synthetic:")},
                     {"batch", batch},
                     {"fields", std::vector<std::string>{"image uint8[1]", "label int32[]"}}});
    infer(graph_, NodeId(0));
    const ValueId image =
        add("Cast", "image.float", {graph_.nodes[0].outputs[0]}, {{"to", onnx_number(DataType::Float32)}});
    const std::vector<Tensor> drawn_inputs = draw_inputs(op_, sample_, DataType::Float32, 7);
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < drawn_inputs.size(); ++i) inputs.push_back(input(i, drawn_inputs[i]));
    const NodeId node = graph_.add_node(op_, "node", inputs, sample_.output_count, sample_.attributes);
    infer(graph_, node);
    for (size_t k = 0; op_.keeps_statistics && k < 2; ++k) {
      graph_.carries.push_back({statistics_[k], graph_.nodes[node].outputs[1 + k]});
    }
    const ValueId own = drawn("own", {3}, Role::Parameter);
    loss_ = add("ReduceMean", "loss.own", {add("Mul", "loss.product", {image, own})}, {{"keepdims", int64_t{0}}});
    // In inference such operators have but their first output.
    const size_t outputs = op_.for_inference ? 1 : size_t(sample_.output_count);
    for (size_t k = 0; k < outputs; ++k) {
      const ValueId output = graph_.nodes[node].outputs[k];
      if (graph_.values[output].type.elements() == 0) continue;
      const ValueId made = after(k, output);
      outputs_.push_back(graph_.values[made].name);
      if (k >= counted_) continue;
      const std::string name = fmt::format("loss.y{}", k);
      const ValueId weights = drawn(name + ".weights", graph_.values[made].type.shape, Role::Constant);
      const ValueId weighted = add("Mul", name + ".weighted", {made, weights});
      loss_ = add("Add", name, {loss_, add("ReduceMean", name + ".mean", {weighted}, {{"keepdims", int64_t{0}}})});
    }
    const ValueId trained = add("arbalest.Train", "trained", {loss_}, {{"lr", 0.1}, {"momentum", 0.9}});
    add("arbalest.Validate", "report", {trained, loss_}, {{"batch", batch}});
  }

  // Whether exactly the parameters get gradients. Otherwise inputs or outputs that pass none on have been noted.
  bool settle() {
    Graph graph = graph_;
    std::vector<ValueId> parameters;
    for (const ValueId v : graph.values.ids()) {
      if (graph.values[v].role == Role::Parameter) parameters.push_back(v);
    }
    const std::vector<bool> before = trained_;
    const size_t counted_before = counted_;
    try {
      const Graph forward = graph;
      const std::vector<ValueId> gradients = add_gradients(graph, loss_, parameters);
      for (size_t p = 0; p < parameters.size(); ++p) {
        const std::string& name = forward.values[parameters[p]].name;
        if (gradients[p] == kNone && name.starts_with("p")) trained_[size_t(std::stoi(name.substr(1)))] = false;
      }
    } catch (const GraphError&) {
      if (counted_ > 1) {
        counted_ = 1;
      } else {
        trained_.assign(trained_.size(), false);
      }
    }
    return trained_ == before && counted_ == counted_before;
  }

  const Op& op_;
  const Sample& sample_;
  const Around around_;
  std::vector<bool> trained_;  // by input
  size_t counted_ = 0;         // outputs that are in the loss
  Graph graph_;
  ValueId loss_ = kNone;
  std::vector<std::string> outputs_;
  ValueId statistics_[2];  // running mean and variance
};

std::string text_of(const Graph& graph) {
  std::string text;
  for (const Node& node : graph.nodes) {
    text += node.name + " " + node.op->qualified_name();
    for (const NamedAttribute& attribute : node.attributes) text += " " + attribute.name + to_string(attribute.value);
    for (const ValueId v : node.inputs) text += " " + (v == kNone ? "-" : graph.values[v].name);
    text += "\n";
  }
  return text;
}
std::string text_of(const Program& program) {
  std::string text;
  for (const Loop& loop : program.loops) text += text_of(loop.graph);
  return text;
}

// Regions keep more digits of a bfloat16 that others of their steps read.
bool has_bfloat16(const Graph& graph) {
  return std::any_of(graph.values.begin(), graph.values.end(),
                     [](const Value& value) { return value.type.dtype == DataType::Bfloat16; });
}

// A net with all passes, and its numbers once they are asked for.
class WholeNet {
 public:
  WholeNet(const Op& op, const Sample& sample, Around around, TestDevice& device, DataType floats)
      : net_(op, sample, around), scalars_(sample.scalars), device_(device), floats_(floats) {
    options_.outputs = net_.outputs();
    std::string last;
    const std::vector<std::string> optional = pass_names(true);
    options_.after = [&](std::string_view pass, const Graph& graph) {
      const std::string text = text_of(graph);
      const bool counts = std::find(optional.begin(), optional.end(), pass) != optional.end();
      if (text != last && counts) changing_.emplace_back(pass);
      last = text;
    };
    whole_ = make_program(net_.graph(), options_);
    options_.after = nullptr;
    options_.check = false;
  }

  const Program& program() const { return whole_; }
  const std::vector<std::string>& changing() const { return changing_; }  // the optional passes that changed the net

  Program without(const std::string& pass) const {
    ProgramOptions options = options_;
    options.without = {pass};
    return make_program(net_.graph(), options);
  }

  // "" or how the numbers of a program of the net differ from those with all passes.
  std::string fault_of(const Program& program) {
    double rounding = floats_ == DataType::Float64 ? 1e-8 : 1e-3;
    if (has_bfloat16(net_.graph())) rounding = 2e-2;
    if (expected_.empty()) expected_ = numbers_of(whole_, scalars_, device_, floats_);
    return difference(expected_, numbers_of(program, scalars_, device_, floats_), rounding);
  }

 private:
  const SampleNet net_;
  const StepScalars scalars_;
  TestDevice& device_;
  const DataType floats_;
  ProgramOptions options_{.fused_kernels = true, .generated_kernels = true, .aside = true, .alone = true};
  Program whole_;
  std::vector<std::string> changing_;
  Numbers expected_;
};

// Operators that stand in nets by themselves: the others span devices, or passes place them.
bool stands_alone(const Op& op) {
  return op.cpu && op.samples && !op.collective && !op.optimizer && !op.side_effect && !op.prepare;
}

// Larger samples are for kernels.
constexpr int64_t kMostElements = 20'000;

std::vector<Sample> samples_of(const Op& op) {
  std::vector<Sample> samples = op.samples();
  std::erase_if(samples, [&](const Sample& sample) {
    int64_t elements = 0;
    for (const Sample::Input& input : sample.inputs) elements += input.type.elements();
    return elements > kMostElements || (op.compares && elements == 0);
  });
  return samples;
}

// Adds the passes that changed the net. Returns how many programs were compared.
int check_net(WholeNet net, std::set<std::string>& changing) {
  int compared = 0;
  for (const std::string& pass : net.changing()) {
    const Program program = net.without(pass);
    if (text_of(program) == text_of(net.program())) continue;
    INFO("without ", pass);
    CHECK(net.fault_of(program) == "");
    changing.insert(pass);
    ++compared;
  }
  return compared;
}

// Each sample has one of the surroundings, in turn; those of operators with few samples have all. Takes every so many
// nets.
void check_all(TestDevice& device, DataType floats, int every = 1) {
  test::Part part;
  constexpr size_t kFew = 3;
  std::set<std::string> changing;
  int nets = 0, taken = 0, compared = 0;
  for (const Op& op : builtin_ops().all()) {
    if (!stands_alone(op)) continue;
    const std::vector<Sample> samples = samples_of(op);
    for (size_t s = 0; s < samples.size(); ++s) {
      for (const Around around : {Around::Nothing, Around::Elements, Around::Moves}) {
        if ((samples.size() >= kFew && s % kFew != size_t(around)) || !part.has_next()) continue;
        if (nets++ % every != 0) continue;
        INFO(op.qualified_name(), ", sample '", samples[s].name, "', surroundings ", int(around));
        try {
          compared += check_net({op, samples[s], around, device, floats}, changing);
          ++taken;
        } catch (const std::exception& error) {
          // One value a mean: the net is refused.
          CHECK(std::string_view(error.what()).find("is normalised by itself") != std::string_view::npos);
        }
      }
    }
  }
  if (part.is_whole()) CHECK(nets > 2000);
  CHECK(compared > taken / 2);
  if (every > 1 || !part.is_whole()) return;
  for (const char* pass :
       {"fuse_batch_norm", "fuse_relu", "simplify_moves", "fuse_transposes", "fuse_rearrangements", "fuse_biases",
        "keep_maxima", "fuse_moves", "open_batch_norms", "fuse_regions", "fuse_region_moves"}) {
    INFO(std::string(pass));
    CHECK(changing.contains(pass));
  }
}

}  // namespace

TEST_CASE("operators train alike without each optional pass, in double") {
  check_all(*make_cpu_device(), DataType::Float64);
}

TEST_CASE("operators train alike without each optional pass, in float") {
  check_all(*make_cpu_device(), DataType::Float32, 3);
}

TEST_CASE("operators train alike without each optional pass on CUDA") {
  std::string why_not;
  const auto device = make_cuda_device(why_not);
  if (!device) {
    MESSAGE("SKIP: " << why_not);
    return;
  }
  check_all(*device, DataType::Float32);
}

TEST_CASE("a rewrite that changes a result, a gradient or what validation makes is found") {
  const Op& gemm = builtin_ops().get("Gemm");
  const std::vector<Sample> samples = samples_of(gemm);
  const auto device = make_cpu_device();
  for (const DataType floats : {DataType::Float64, DataType::Float32}) {
    WholeNet net(gemm, samples[0], Around::Nothing, *device, floats);
    CHECK(net.fault_of(net.program()) == "");
    const auto fault = [&](LoopRole role, Stage stage, std::string_view op) {
      Program spoilt = net.program();
      int changed = 0;
      for (Node& node : spoilt.find(role)->graph.nodes) {
        if (node.op->qualified_name() != op || node.stage != stage) continue;
        node.attributes.set("alpha", 1.5 * float_attribute(node, "alpha"));
        ++changed;
      }
      CHECK(changed == 1);
      return net.fault_of(spoilt);
    };
    CHECK(fault(LoopRole::Train, Stage::Forward, "Gemm").starts_with("the loss of step 0 differs by "));
    CHECK(fault(LoopRole::Train, Stage::Backward, "arbalest.GemmGradB").starts_with("p"));
    CHECK(fault(LoopRole::Validate, Stage::Forward, "Gemm").starts_with("output 0 of validation differs by "));
  }
}

TEST_CASE("passes look for operators that there are") {
  const std::string names = content(root() / "ops/names.h");
  const std::regex name("= \"([^\"]+)\"");
  int count = 0;
  for (std::sregex_iterator i(names.begin(), names.end(), name), end; i != end; ++i, ++count) {
    CHECK_MESSAGE(builtin_ops().find((*i)[1].str()), (*i)[1].str());
  }
  CHECK(count > 80);
}

}  // namespace operators_test
