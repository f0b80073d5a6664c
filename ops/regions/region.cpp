// SPDX-License-Identifier: Apache-2.0
#include "ops/regions/region.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/number.h"
#include "ops/math/elementwise.h"
#include "ops/math/elementwise_cpu.h"
#include "ops/math/strided.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

// "Mul 0 3": the operator and its operands.
std::string step_text(const RegionStep& step) {
  return fmt::format("{} {}", step.op->qualified_name(), fmt::join(step.operands, " "));
}

RegionStep read_step(const Node& node, const OpRegistry& registry, const std::string& text, size_t known) {
  const auto refuse = [&](std::string_view expected) {
    fail(node, fmt::format("attribute 'steps' has '{}'; expected {}", text, expected));
  };
  RegionStep step;
  std::string_view rest = text;
  const auto word = [&] {
    const std::string_view found = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), found.size() + 1));
    return found;
  };
  step.op = registry.find(word());
  if (!step.op || !step.op->element) refuse("an elementwise operator first");
  while (!rest.empty()) {
    const auto operand = read_number<size_t>(word());
    if (!operand || *operand >= known) refuse(fmt::format("numbers below {} as operands", known));
    step.operands.push_back(*operand);
  }
  const size_t arguments = step.op->element->arguments.size();
  if (step.operands.size() != arguments) refuse(fmt::format("{} operands", arguments));
  return step;
}

DataType stated_element(const Node& node, const std::string& name) {
  for (const DataType type : {DataType::Float32, DataType::Bfloat16}) {
    if (name_of(type) == name) return type;
  }
  fail(node, fmt::format("attribute 'types' has '{}'; expected float or bfloat16", name));
}

// Whether sums by sample differ from sums over all rows and from what is summed.
bool has_rows_of_samples(const TensorType& space) {
  const size_t rank = space.shape.size();
  if (rank < 3 || space.shape[0] < 2 || innermost_axis(space) == 0) return false;
  return space.elements() > space.shape[0] * space.shape[innermost_axis(space)];
}

// Throws if the view reaches over an end of the input's memory.
void check_view(InferContext& c, const RegionView& view, const TensorType& space) {
  const int64_t elements = c.input(view.input).elements();
  int64_t last = view.first;
  bool inside = view.first >= 0 && (view.first < elements || space.elements() == 0);
  for (size_t axis = 0; axis < view.strides.size() && inside; ++axis) {
    const int64_t stride = view.strides[axis], steps = std::max<int64_t>(space.shape[axis] - 1, 0);
    inside = stride >= 0 && (stride == 0 || steps <= elements / stride);
    last += inside ? steps * stride : 0;
  }
  if (inside && (last < elements || space.elements() == 0)) return;
  c.fail(
      fmt::format("attribute 'views' has input {} from element {} by strides [{}]; expected one within its {} elements",
                  view.input, view.first, fmt::join(view.strides, ", "), elements));
}

void infer_region(InferContext& c, const OpRegistry& registry) {
  const RegionProgram program = region_program(c.node(), registry);
  TensorType space = stated_type(c.node(), DataType::Float32);
  bool doubles = false;
  for (size_t i = 0; i < c.input_count(); ++i) {
    const TensorType& type = c.input(i);
    if (!is_floating(type.dtype) && type.dtype != DataType::Bool) floating_input(c, i);
    doubles = doubles || type.dtype == DataType::Float64;
    if (const RegionView* view = program.view_of(i)) {
      check_view(c, *view, space);
      continue;
    }
    bool fits = type.shape.size() <= space.shape.size();
    for (size_t back = 1; fits && back <= type.shape.size(); ++back) {
      const int64_t own = type.shape[type.shape.size() - back];
      fits = own == 1 || own == space.shape[space.shape.size() - back];
    }
    if (!fits) expect_input(c, i, space, "or what broadcasts to it");
  }
  const int64_t channels = space.shape.empty() ? 0 : space.shape[innermost_axis(space)];
  if (!program.sums.empty() && channels < 2) {
    c.fail(fmt::format("the innermost axis of {} has {} elements; sums need two", to_string(space), channels));
  }
  if (program.sums_by_sample() && !has_rows_of_samples(space)) {
    c.fail(fmt::format("{}; sums by sample need two samples, and two rows of each", to_string(space)));
  }
  const std::vector<std::string> types = strings_attribute(c.node(), "types");
  const size_t before_sums = program.result_outputs();
  for (size_t i = 0; i < c.output_count(); ++i) {
    TensorType type = i < before_sums ? result_type(space, program, i) : sum_type(space, program.sums[i - before_sums]);
    type.dtype = doubles ? DataType::Float64 : stated_element(c.node(), types[i]);
    c.set_output(i, type);
  }
}

// Bytes of inputs that their views leave out.
double bytes_not_viewed(const Graph& graph, const Node& node) {
  const Shape shape = ints_attribute(node, "shape");
  const std::vector<int64_t> views = ints_attribute(node, "views");
  double bytes = 0;
  for (size_t at = 0; at < views.size(); at += 2 + shape.size()) {
    const TensorType& type = graph.values[node.inputs[size_t(views[at])]].type;
    int64_t viewed = 1;
    for (size_t axis = 0; axis < shape.size(); ++axis) viewed *= views[at + 2 + axis] == 0 ? 1 : shape[axis];
    bytes += double(type.elements() - viewed) * double(size_of(type.dtype));
  }
  return bytes;
}

// The kernel that tests hold those of GPUs against: one step after the other, over whole tensors in the workspace.
// The workspace holds the inputs, spread over the space, and the results of the steps.
template <typename W>
class RegionKernel final : public Kernel {
 public:
  RegionKernel(const KernelRequest& request, RegionProgram program)
      : program_(std::move(program)), space_(stated_type(request.node, DataType::Float32)) {
    const RegionWalk walk(space_, request.inputs, program_);
    first_ = walk.first;
    for (size_t i = 0; i < request.inputs.size(); ++i) {
      walks_.emplace_back(walk.extents, std::vector{dense(walk.extents), walk.strides[i]});
      inputs_.push_back(request.inputs[i].dtype);
    }
    for (size_t r = 0; r < program_.results.size(); ++r) {
      goes_.emplace_back(walk.extents, std::vector{dense(walk.extents), walk.strides[program_.inputs + r]});
    }
    for (const TensorType& type : request.outputs) outputs_.push_back(type.dtype);
  }
  int64_t workspace_bytes() const override {
    return int64_t(program_.inputs + program_.steps.size()) * space_.elements() * int64_t(sizeof(W));
  }

  void run(const KernelContext& c) const override {
    const int64_t count = space_.elements();
    const auto values = [&](size_t operand) { return static_cast<W*>(c.workspace) + int64_t(operand) * count; };
    for (size_t i = 0; i < program_.inputs; ++i) {
      dispatch_element(inputs_[i], [&](auto element) {
        const auto wide = [](auto value) { return W(value); };
        map_strided(walks_[i], count, wide, values(i), input<decltype(element)>(c, i) + first_[i]);
      });
    }
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const RegionStep& step = program_.steps[s];
      const void* in[RowMap::kMostInputs];
      for (size_t k = 0; k < step.operands.size(); ++k) in[k] = values(step.operands[k]);
      const auto row = std::is_same_v<W, double> ? step.op->element->doubles : step.op->element->floats;
      row(step.numbers.data(), count, values(program_.inputs + s), in, -1);
    }
    const std::vector<RegionProgram::Target> targets = program_.targets();
    for (size_t r = 0; r < targets.size(); ++r) {
      hand_out(c, targets[r].output, values(program_.inputs + program_.results[r]), goes_[r],
               first_[program_.inputs + r], count);
    }
    const size_t results = program_.result_outputs();
    for (size_t k = 0; k < program_.sums.size(); ++k) {
      const RegionSum& sum = program_.sums[k];
      const int64_t channels = space_.shape[innermost_axis(space_)], places = sum.by_sample() ? space_.shape[0] : 1;
      std::vector<double> totals(size_t(places * channels), 0.0);
      for (int64_t i = 0; i < count; ++i) {
        totals[size_t(i / (count / places) * channels + i % channels)] += double(values(sum.of)[i]);
      }
      for (double& total : totals) total *= sum.scale;
      hand_out(c, results + k, totals.data(), Strided({places * channels}, {{1}, {1}}), 0, places * channels);
    }
  }

 private:
  static std::vector<int64_t> dense(const std::vector<int64_t>& extents) {
    return memory_strides({DataType::Float32, extents});
  }
  // Tensor 1 of the walk is where the elements go.
  template <typename From>
  void hand_out(const KernelContext& c, size_t k, const From* from, const Strided& walk, int64_t first,
                int64_t count) const {
    dispatch_floating(outputs_[k], [&](auto element) {
      using T = decltype(element);
      T* to = output<T>(c, k) + first;
      for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i, at = 0;
        for (int axis = walk.rank; axis-- > 0; rest /= walk.extent[axis]) {
          at += rest % walk.extent[axis] * walk.stride[1][axis];
        }
        to[at] = narrow<T>(Wide<T>(from[i]));
      }
    });
  }

  RegionProgram program_;
  TensorType space_;
  std::vector<Strided> walks_, goes_;  // by input, and by result
  std::vector<int64_t> first_;         // as RegionWalk::first
  std::vector<DataType> inputs_, outputs_;
};

// The gates of a recurrent layer out of one tensor and their gradients into one; halves of channels; a transposition; a
// row of every second element; concatenations along each axis, between other results, and with sums.
void add_moved_samples(std::vector<Sample>& samples, const OpRegistry& registry) {
  using enum DataType;
  const auto add = [&](std::string name, const TensorType& space, const std::vector<TensorType>& inputs,
                       RegionProgram program, size_t sums = 0) {
    program.inputs = inputs.size();
    const std::vector<DataType> types(program.result_outputs() + sums, Float32);
    Sample sample{.name = std::move(name), .output_count = int(types.size()), .tolerance = sums == 0 ? 2e-6 : 1e-5};
    for (const TensorType& input : inputs) sample.inputs.push_back({input, 0.5, 2});
    sample.attributes = region_attributes(program, space, types);
    samples.push_back(std::move(sample));
  };
  const RegionStep sigmoid{&registry.get("Sigmoid"), {0}}, tanh{&registry.get("Tanh"), {1}};
  const auto mul = [&](size_t a, size_t b) { return RegionStep{&registry.get("Mul"), {a, b}}; };
  // The last fills a GPU, so that its threads take packs.
  for (const Shape& shape : {Shape{6, 5}, Shape{6, 8}, Shape{6, 64}, Shape{1650, 64}}) {
    const int64_t width = shape[1];
    const TensorType space{Float32, shape}, gates{Float32, {shape[0], 4 * width}};
    const auto gate = [&](size_t input, int64_t place) { return RegionView{input, place * width, {4 * width, 1}}; };
    const std::string of = to_string(shape);
    add(fmt::format("gates of {}", of), space, {gates, gates, space, gates},
        {.steps = {sigmoid, tanh, mul(4, 5), mul(2, 3)},
         .results = {2, 3},
         .views = {gate(0, 0), gate(1, 2), gate(3, 3)}});
    add(fmt::format("gradients of gates of {}", of), space, {space, gates, space},
        {.steps = {{sigmoid.op, {0}}, {tanh.op, {2}}, mul(3, 4), mul(5, 1)},
         .results = {0, 3, 1, 2, 0},
         .views = {gate(1, 1)},
         .concats = {{1, 1, 3}}});
    add(fmt::format("gradients of gates of {}, and their sums", of), space, {space, gates},
        {.steps = {{sigmoid.op, {0}}, mul(2, 1)},
         .results = {0, 1},
         .sums = {{3, 1}, {2, 1}},
         .views = {gate(1, 3)},
         .concats = {{0, 1, 2}}},
        2);
  }
  for (const Layout layout : {Layout::RowMajor, Layout::ChannelsLast}) {
    const TensorType space = TensorType{Float32, {2, 8, 3, 5}}.in(layout),
                     whole = TensorType{Float32, {2, 24, 3, 5}}.in(layout);
    RegionView view{0, 8 * memory_strides(whole)[1], memory_strides(whole)};
    for (const size_t axis : {0, 1, 2, 3}) {
      add(fmt::format("{} channels, joined along axis {}", name_of(layout), axis), space, {whole, space},
          {.steps = {sigmoid, mul(2, 1)}, .results = {0, 1}, .views = {view}, .concats = {{0, axis, 2}}});
    }
    add(fmt::format("{} channels, sums of samples", name_of(layout)), space, {whole, space},
        {.steps = {sigmoid, mul(2, 1)},
         .results = {0, 1},
         .sums = {{3, 0.5, 2}},
         .views = {view},
         .concats = {{0, 1, 2}}},
        1);
  }
  const TensorType space{Float32, {4, 6, 16}};
  add("transposed", space, {{Float32, {6, 4, 16}}, {Float32, {16, 6}}},
      {.steps = {sigmoid, mul(2, 1)}, .results = {1}, .views = {{0, 0, {16, 64, 1}}, {1, 0, {0, 1, 6}}}});
  add("every second element", space, {{Float32, {4, 6, 32}}},
      {.steps = {sigmoid}, .results = {0, 0}, .views = {{0, 1, {192, 32, 2}}}, .concats = {{0, 0, 2}}});
}

// GELU as PyTorch exports it, with a bias before and both ways out; the gradients of a product with a broadcast factor;
// a choice; what stands still along inner axes; an odd innermost axis.
std::vector<Sample> region_samples(const OpRegistry& registry) {
  const auto step = [&](std::string_view op, std::vector<size_t> operands, double alpha = 0) {
    return RegionStep{&registry.get(op), std::move(operands), {alpha, 0.0}};
  };
  std::vector<Sample> samples;
  const auto add = [&](std::string name, const TensorType& space, const std::vector<Shape>& inputs,
                       RegionProgram program, std::vector<DataType> types, bool condition = false) {
    program.inputs = inputs.size();
    Sample sample{.name = std::move(name),
                  .output_count = int(program.results.size() + program.sums.size()),
                  .tolerance = program.sums.empty() ? 2e-6 : 1e-5};
    for (const Shape& input : inputs) {
      const bool same_rank = input.size() == space.shape.size();
      const TensorType type{DataType::Float32, input};
      sample.inputs.push_back({same_rank ? type.in(space.layout) : type, 0.5, 2});
    }
    if (condition) sample.inputs[0] = {{DataType::Bool, inputs[0]}, 0, 1};
    sample.attributes = region_attributes(program, space, types);
    samples.push_back(std::move(sample));
  };
  using enum DataType;
  const auto plain = [](Shape shape) { return TensorType{Float32, std::move(shape)}; };
  const std::vector<RegionStep> gelu = {step("Add", {0, 1}), step("Div", {4, 2}), step("Erf", {5}),
                                        step("Add", {6, 3}), step("Mul", {4, 7}), step("Sigmoid", {8})};
  for (const Shape& shape : {Shape{5, 7, 64}, Shape{64, 40}, Shape{3, 5, 49}, Shape{2, 3, 1}, Shape{50, 33, 64}}) {
    add(fmt::format("{}: bias, GELU of parts", to_string(shape)), plain(shape), {shape, {shape.back()}, {}, {1}},
        {.steps = gelu, .results = {0, 4, 5}}, {Float32, Float32, Float32});
  }
  add("gradients of a scaled image", plain({2, 8, 6, 4}), {{2, 8, 6, 4}, {2, 8, 1, 1}, {2, 8, 6, 4}},
      {.steps = {step("arbalest.MulGradA", {0, 1}), step("arbalest.MulGradB", {0, 2}),
                 step("arbalest.SigmoidGrad", {3, 4})},
       .results = {2, 1}},
      {Float32, Float32});
  add("a choice, cast", plain({4, 1, 6}), {{6}, {4, 1, 1}, {4, 1, 6}},
      {.steps = {step("Where", {0, 1, 2}), step("Cast", {3}), step("arbalest.WhereGrad", {0, 4}, 1)}, .results = {2}},
      {Float32}, true);
  add("operands that cross", plain({4, 5}), {{4, 1}, {1, 5}},
      {.steps = {step("Sub", {0, 1}), step("Mul", {2, 2})}, .results = {1}}, {Float32});
  // The gradient of a batch norm after a sigmoid: sums, then what is made of them; and a bias's alone.
  for (const Shape& shape : {Shape{600, 64}, Shape{3, 5, 40}, Shape{2, 3, 7, 9}, Shape{1030, 3}, Shape{20, 4096}}) {
    const size_t rank = shape.size();
    const Shape row = {shape.back()};
    add(fmt::format("{}: sums over rows", to_string(shape)), plain(shape), {shape, shape, row, row},
        {.steps = {step("arbalest.SigmoidGrad", {0, 1}), step("Sub", {1, 2}), step("Mul", {5, 3}), step("Mul", {4, 6})},
         .results = {0},
         .sums = {{4, 1}, {7, 1}, {4, 0.25}, {1, 0.5}}},
        {Float32, Float32, Float32, Float32, Float32});
    add(fmt::format("{}: operands of columns", to_string(shape)), plain(shape), {shape, row, row, Shape(rank, 1)},
        {.steps = {step("Sub", {0, 1}), step("Mul", {4, 2}), step("Add", {5, 3})}, .results = {2}}, {Float32});
    add(fmt::format("{}: sums alone", to_string(shape)), plain(shape), {shape, row},
        {.steps = {step("Mul", {0, 1})}, .sums = {{2, 1}}}, {Float32});
  }
  // Squeeze-and-excitation: means of what is scaled, sums for gradients of scales, and what is made of them.
  for (const TensorType& space : {plain({6, 50, 64}), plain({3, 5, 40}), plain({2, 3, 7, 9}), plain({70, 2, 3}),
                                  plain({2, 600, 512}), plain({2, 24, 7, 5}).in(Layout::ChannelsLast)}) {
    const std::string name =
        fmt::format("{}{}", to_string(space.shape), space.layout == Layout::ChannelsLast ? ", channels-last" : "");
    const size_t rank = space.shape.size();
    const Shape &shape = space.shape, scale = sum_type(space, {.rank = rank}).shape;
    Shape row = scale, one(rank, 1);
    row[0] = 1;
    one[0] = shape[0];
    add(name + ": sums of samples", space, {shape, row, scale},
        {.steps = {step("Add", {0, 1}), step("Mul", {3, 2})},
         .results = {0},
         .sums = {{3, 0.125, 2}, {4, 1}, {4, 1, rank}, {0, 1, 2}}},
        {Float32, Float32, Float32, Float32, Float32});
    add(name + ": operands of samples", space, {shape, scale, row, one, scale},
        {.steps = {step("Mul", {0, 1}), step("arbalest.ReduceMeanGrad", {4}, 7), step("Add", {5, 6}),
                   step("Mul", {7, 2}), step("Add", {8, 3})},
         .results = {4},
         .sums = {{9, 1}}},
        {Float32, Float32});
    add(name + ": operands of samples, without sums", space, {shape, row, row, scale},
        {.steps = {step("Mul", {0, 1}), step("Add", {4, 2}), step("Mul", {5, 3})}, .results = {2}}, {Float32});
  }
  add_moved_samples(samples, registry);
  return samples;
}

}  // namespace

bool is_region_step(const Op& op, const std::vector<DataType>& inputs, DataType output) {
  const size_t count = op.element ? op.element->arguments.size() : 0;
  if (count == 0 || inputs.size() < count) return false;
  const auto is_number = [](DataType type) { return type == DataType::Float32 || type == DataType::Bfloat16; };
  return is_number(output) && std::all_of(inputs.begin(), inputs.begin() + std::ptrdiff_t(count),
                                          [&](DataType type) { return is_number(type) || type == DataType::Bool; });
}

bool is_region_step(const Graph& graph, const Node& node) {
  if (!node.op->element) return false;
  std::vector<DataType> inputs;
  for (const ValueId input : node.inputs) {
    inputs.push_back(input == kNone ? DataType::Token : graph.values[input].type.dtype);
  }
  return is_region_step(*node.op, inputs, graph.values[node.outputs[0]].type.dtype);
}

RegionProgram one_step(const Node& node) {
  const ElementFunction& element = *node.op->element;
  RegionProgram program{.inputs = element.arguments.size(), .steps = {{node.op, {}, {}}}, .results = {0}, .sums = {}};
  RegionStep& step = program.steps[0];
  for (size_t i = 0; i < program.inputs; ++i) step.operands.push_back(i);
  if (element.numbers) step.numbers = element.numbers(node);
  return program;
}

bool RegionProgram::sums_by_sample() const {
  return std::any_of(sums.begin(), sums.end(), [](const RegionSum& sum) { return sum.by_sample(); });
}

std::vector<RegionProgram::Target> RegionProgram::targets() const {
  std::vector<Target> found;
  auto concat = concats.begin();
  for (size_t output = 0; found.size() < results.size(); ++output) {
    const bool whole = concat == concats.end() || concat->output != output;
    for (size_t part = 0; part < (whole ? 1 : concat->parts); ++part) {
      found.push_back({output, part, whole ? nullptr : &*concat});
    }
    if (!whole) ++concat;
  }
  return found;
}

const RegionView* RegionProgram::view_of(size_t input) const {
  const auto found =
      std::find_if(views.begin(), views.end(), [&](const RegionView& each) { return each.input == input; });
  return found == views.end() ? nullptr : &*found;
}

size_t RegionProgram::result_outputs() const {
  size_t count = results.size();
  for (const RegionConcat& concat : concats) count -= concat.parts - 1;
  return count;
}

TensorType result_type(const TensorType& space, const RegionProgram& program, size_t index) {
  TensorType type = space;
  for (const RegionConcat& concat : program.concats) {
    if (concat.output == index) type.shape[concat.axis] *= int64_t(concat.parts);
  }
  return type;
}

TensorType sum_type(const TensorType& space, const RegionSum& sum) {
  const size_t innermost = innermost_axis(space);
  const int64_t channels = space.shape[innermost];
  if (sum.rank == 1) return {DataType::Float32, {channels}};
  if (sum.rank == 2) return {DataType::Float32, {space.shape[0], channels}};
  TensorType type{DataType::Float32, Shape(space.shape.size(), 1), space.layout};
  type.shape[0] = space.shape[0];
  type.shape[innermost] = channels;
  return type;
}

Attributes region_attributes(const RegionProgram& program, const TensorType& space,
                             const std::vector<DataType>& outputs) {
  std::vector<std::string> steps, types;
  std::vector<double> numbers;
  for (const RegionStep& step : program.steps) {
    steps.push_back(step_text(step));
    numbers.insert(numbers.end(), step.numbers.begin(), step.numbers.end());
  }
  for (const DataType type : outputs) types.emplace_back(name_of(type));
  std::vector<int64_t> sums, ranks;
  std::vector<double> scales;
  for (const RegionSum& sum : program.sums) {
    sums.push_back(int64_t(sum.of));
    scales.push_back(sum.scale);
    ranks.push_back(int64_t(sum.rank));
  }
  Attributes attributes = {{"steps", std::move(steps)},
                           {"numbers", std::move(numbers)},
                           {"results", std::vector<int64_t>(program.results.begin(), program.results.end())},
                           {"types", std::move(types)}};
  if (!sums.empty()) {
    attributes.set("sums", std::move(sums));
    attributes.set("scales", std::move(scales));
    if (program.sums_by_sample()) attributes.set("ranks", std::move(ranks));
  }
  std::vector<int64_t> views, concats;
  for (const RegionView& view : program.views) {
    views.insert(views.end(), {int64_t(view.input), view.first});
    views.insert(views.end(), view.strides.begin(), view.strides.end());
  }
  for (const auto& [output, axis, parts] : program.concats) {
    concats.insert(concats.end(), {int64_t(output), int64_t(axis), int64_t(parts)});
  }
  if (!views.empty()) attributes.set("views", std::move(views));
  if (!concats.empty()) attributes.set("concats", std::move(concats));
  set_type(attributes, space);
  return attributes;
}

namespace {

// Reads the attribute 'views': for each its input, its first element and its strides.
void read_views(const Node& node, size_t rank, RegionProgram& program) {
  const std::vector<int64_t> views = ints_attribute(node, "views");
  const size_t length = 2 + rank;
  for (size_t at = 0; at < views.size(); at += length) {
    const bool known = views[at] >= 0 && size_t(views[at]) < program.inputs && !program.view_of(size_t(views[at]));
    if (at + length > views.size() || !known) {
      fail(node,
           fmt::format("attribute 'views' has [{}]; expected for each another input, below {}, where it begins, and "
                       "{} strides",
                       fmt::join(views, ", "), program.inputs, rank));
    }
    const auto strides = views.begin() + std::ptrdiff_t(at + 2);
    program.views.push_back({size_t(views[at]), views[at + 1], {strides, strides + std::ptrdiff_t(rank)}});
  }
}

// Reads the attribute 'concats': for each its output, its axis and the number of its parts.
void read_concats(const Node& node, size_t rank, RegionProgram& program) {
  const std::vector<int64_t> concats = ints_attribute(node, "concats");
  size_t left = program.results.size();  // results that are not known to be parts of an earlier one's output
  for (size_t at = 0; at < concats.size(); at += 3) {
    bool right = at + 3 <= concats.size();
    right = right && concats[at] >= (at == 0 ? 0 : concats[at - 3] + 1) && concats[at + 1] >= 0;
    right = right && size_t(concats[at + 1]) < rank && concats[at + 2] >= 2;
    right = right && size_t(concats[at + 2] - 1) < left && size_t(concats[at]) <= left - size_t(concats[at + 2]);
    if (!right) {
      fail(node,
           fmt::format("attribute 'concats' has [{}]; expected for each an output, in order, an axis below {} and "
                       "2 parts or more, {} in all",
                       fmt::join(concats, ", "), rank, program.results.size()));
    }
    left -= size_t(concats[at + 2] - 1);
    program.concats.push_back({size_t(concats[at]), size_t(concats[at + 1]), size_t(concats[at + 2])});
  }
}

}  // namespace

RegionProgram region_program(const Node& node, const OpRegistry& registry) {
  RegionProgram program{.inputs = node.inputs.size()};
  const std::vector<std::string> steps = strings_attribute(node, "steps");
  const std::vector<double> numbers = floats_attribute(node, "numbers");
  if (numbers.size() != 2 * steps.size()) {
    fail(node, fmt::format("attribute 'numbers' has {}; expected two a step, {}", numbers.size(), 2 * steps.size()));
  }
  for (const std::string& text : steps) {
    const size_t s = program.steps.size();
    program.steps.push_back(read_step(node, registry, text, program.inputs + s));
    program.steps.back().numbers = {numbers[2 * s], numbers[2 * s + 1]};
  }
  for (const int64_t result : ints_attribute(node, "results")) {
    if (result < 0 || size_t(result) >= steps.size()) {
      fail(node, fmt::format("attribute 'results' has {}; expected steps, from 0 below {}", result, steps.size()));
    }
    program.results.push_back(size_t(result));
  }
  const std::vector<int64_t> sums = ints_attribute(node, "sums");
  const std::vector<double> scales = floats_attribute(node, "scales");
  std::vector<int64_t> ranks = ints_attribute(node, "ranks");
  if (ranks.empty()) ranks.assign(sums.size(), 1);
  if (scales.size() != sums.size() || ranks.size() != sums.size()) {
    fail(node, fmt::format("attributes 'scales' and 'ranks' have {} and {}; expected one a sum, {}", scales.size(),
                           ranks.size(), sums.size()));
  }
  const auto own = int64_t(ints_attribute(node, "shape").size());
  for (size_t i = 0; i < sums.size(); ++i) {
    const size_t known = program.inputs + steps.size();
    if (sums[i] < 0 || size_t(sums[i]) >= known) {
      fail(node, fmt::format("attribute 'sums' has {}; expected operands, from 0 below {}", sums[i], known));
    }
    if (ranks[i] < 1 || (ranks[i] > 2 && ranks[i] != own)) {
      fail(node, fmt::format("attribute 'ranks' has {}; expected 1, 2 or {}", ranks[i], own));
    }
    program.sums.push_back({size_t(sums[i]), scales[i], size_t(ranks[i])});
  }
  read_views(node, size_t(own), program);
  read_concats(node, size_t(own), program);
  const size_t types = strings_attribute(node, "types").size();
  const bool right = program.result_outputs() + sums.size() == node.outputs.size() && types == node.outputs.size();
  if (!right || program.results.size() > RegionProgram::kMostOutputs) {
    fail(node,
         fmt::format("attributes 'results', 'types', 'sums' and 'concats' have {}, {}, {} and {}; expected a type, "
                     "and a result, a concatenation or a sum, for each of {} outputs, and at most {} results",
                     program.results.size(), types, sums.size(), program.concats.size(), node.outputs.size(),
                     RegionProgram::kMostOutputs));
  }
  return program;
}

void register_regions_region(OpRegistry& registry) {
  std::vector<AttributeSpec> attributes = type_specs();
  attributes.push_back(
      required_spec("steps", AttributeKind::Strings, "an operator each, with numbers for its operands"));
  attributes.push_back(required_spec("numbers", AttributeKind::Floats, "two a step: alpha and beta of its formula"));
  attributes.push_back(ints_spec("results", {}, "the step that each output, but for sums, is the result of"));
  attributes.push_back(strings_spec("types", {}, "the type of elements of each output"));
  attributes.push_back(
      ints_spec("sums", {}, "what is summed over all axes but the innermost, for each further output"));
  attributes.push_back(floats_spec("scales", {}, "the factor of each sum"));
  attributes.push_back(ints_spec("ranks", {}, "of each sum; more than 1: the first axis stays, too; none: all are 1"));
  attributes.push_back(ints_spec("views", {}, "an input, its first element, and strides; for each that has strides"));
  attributes.push_back(ints_spec("concats", {}, "an output, an axis, and how many results it has along that"));
  registry.add(
      {.domain = "arbalest",
       .name = "Region",
       .doc = "elementwise operators that are computed together, element by element, and sums of their results",
       .inputs = {{.name = "inputs", .arity = OperandSpec::Variadic, .lowered = true}},
       .outputs = {{.name = "outputs", .arity = OperandSpec::Variadic, .lowered = true}},
       .attributes = std::move(attributes),
       .internal = true,
       .layout = std::nullopt,
       .infer = [&registry](InferContext& c) { infer_region(c, registry); },
       .cost =
           [](const Graph& graph, const Node& node) {
             const double steps = double(strings_attribute(node, "steps").size());
             const double elements = double(stated_type(node, DataType::Float32).elements());
             return Cost{steps * elements, operand_bytes(graph, node) - bytes_not_viewed(graph, node)};
           },
       .samples = [&registry] { return region_samples(registry); },
       .cpu = [&registry](const KernelRequest& request) -> std::unique_ptr<Kernel> {
         RegionProgram program = region_program(request.node, registry);
         if (request.outputs[0].dtype == DataType::Float64) {
           return std::make_unique<RegionKernel<double>>(request, std::move(program));
         }
         return std::make_unique<RegionKernel<float>>(request, std::move(program));
       }});
}

}  // namespace arbalest
