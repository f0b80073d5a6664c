// SPDX-License-Identifier: Apache-2.0
#include "ops/check/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "graph/layouts.h"
#include "ops/builtin_ops.h"
#include "ops/check/compare.h"
#include "ops/fused/decomposed.h"
#include "ops/idle_threads.h"

namespace arbalest::test {
namespace {

constexpr size_t kGuard = 256;                        // bytes before and after each buffer
constexpr size_t kPiece = 1 << 20;                    // bytes that are written at a time, from memory that stays in use
constexpr std::byte kGuardByte{0xa5}, kPoison{0xff};  // all ones: NaN in every floating type

class CpuDevice : public TestDevice {
 public:
  const KernelFactory& factory(const Op& op) const override { return op.cpu; }
  DeviceContext* context() override { return nullptr; }
  void* stream() override { return nullptr; }
  void* allocate(size_t bytes) override { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
  void release(void* memory) override { std::free(memory); }
  void upload(void* device, const void* host, size_t bytes) override { copy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { copy(host, device, bytes); }
  void run(const Kernel& kernel, const KernelContext& context) override { kernel.run(context); }

 private:
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);  // an empty vector has no address
  }
};

// Runs what fused operators stand for, if they say that.
class OracleDevice final : public CpuDevice {
 public:
  const KernelFactory& factory(const Op& op) const override {
    static const KernelFactory decomposed = decomposed_cpu;
    return op.decompose ? decomposed : op.cpu;
  }
};

// Device memory with guard bytes on both sides.
class Buffer {
 public:
  Buffer(TestDevice& device, size_t bytes) : device_(&device), bytes_(bytes) {
    memory_ = static_cast<std::byte*>(device.allocate(bytes + 2 * kGuard));
    fill(kPoison);
  }
  Buffer(Buffer&& other) noexcept : device_(other.device_), bytes_(other.bytes_), memory_(other.memory_) {
    other.memory_ = nullptr;
  }
  ~Buffer() {
    if (memory_) device_->release(memory_);
  }
  void* data() const { return memory_ + kGuard; }
  void fill(std::byte value) {
    const std::vector<std::byte> guard(kGuard, kGuardByte), piece(std::min(bytes_, kPiece), value);
    device_->upload(memory_, guard.data(), kGuard);
    for (size_t at = 0; at < bytes_; at += kPiece) {
      device_->upload(memory_ + kGuard + at, piece.data(), std::min(kPiece, bytes_ - at));
    }
    device_->upload(memory_ + kGuard + bytes_, guard.data(), kGuard);
  }
  void set(const std::vector<std::byte>& content) { device_->upload(data(), content.data(), content.size()); }
  std::vector<std::byte> content() const {
    std::vector<std::byte> content(bytes_);
    device_->download(content.data(), data(), bytes_);
    return content;
  }
  bool guards_intact() const { return guard_intact(memory_) && guard_intact(memory_ + kGuard + bytes_); }

 private:
  bool guard_intact(const std::byte* guard) const {
    std::vector<std::byte> bytes(kGuard);
    device_->download(bytes.data(), guard, kGuard);
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kGuardByte; });
  }

  TestDevice* device_;
  size_t bytes_;
  std::byte* memory_;
};

template <typename T>
std::vector<double> widen_all(const Tensor& tensor) {
  std::vector<double> values;
  values.reserve(size_t(tensor.type.elements()));
  const T* data = reinterpret_cast<const T*>(tensor.bytes.data());
  for (int64_t i = 0; i < tensor.type.elements(); ++i) values.push_back(static_cast<double>(data[i]));
  return values;
}

template <typename T>
void narrow_all(const std::vector<double>& values, Tensor& tensor) {
  T* data = reinterpret_cast<T*>(tensor.bytes.data());
  for (size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      data[i] = bfloat16(float(values[i]));
    } else {
      data[i] = T(values[i]);
    }
  }
}

// The type that `lower` gives an operand: Float32 becomes it if the operand follows the compute precision.
DataType operand_type(const OperandSpec* spec, DataType inferred, DataType lower) {
  if (inferred != DataType::Float32) return inferred;
  if (lower == DataType::Float64) return DataType::Float64;
  return spec && spec->lowered ? lower : inferred;
}

std::vector<double> draw(const Sample::Input& input, std::mt19937_64& random) {
  const size_t count = size_t(input.type.elements());
  std::vector<double> values(count);
  if (count == 0) return values;  // the range of indices into nothing is empty, too
  if (input.distinct) {
    for (size_t i = 0; i < count; ++i) {
      values[i] = input.low + (input.high - input.low) * (double(i) + 0.5) / double(count);
    }
    std::shuffle(values.begin(), values.end(), random);
    return values;
  }
  if (is_floating(input.type.dtype)) {
    std::uniform_real_distribution<double> uniform(input.low, std::max(input.high, std::nextafter(input.low, 1e300)));
    for (double& value : values) value = input.low == input.high ? input.low : uniform(random);
  } else {
    std::uniform_int_distribution<int64_t> uniform(int64_t(input.low), int64_t(input.high));
    for (double& value : values) value = double(uniform(random));
  }
  return values;
}

std::vector<TensorType> types_of(const std::vector<Tensor>& tensors) {
  std::vector<TensorType> types;
  for (const Tensor& tensor : tensors) types.push_back(tensor.type);
  return types;
}

uint64_t seed_of(const Op& op, const Sample& sample) {
  return std::hash<std::string>()(op.qualified_name() + "/" + sample.name);
}

// The case's outputs in the precision `type`.
std::vector<TensorType> lowered_outputs(const Case& test, DataType type) {
  std::vector<TensorType> outputs = test.output_types();
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].dtype = operand_type(test.get().op->output_spec(i), outputs[i].dtype, type);
  }
  return outputs;
}

// Runs every node of the graph on the CPU; `known` holds the graph's own inputs at first, everything at the end.
void evaluate(const Graph& graph, Table<ValueId, Tensor>& known, const StepScalars& scalars) {
  const auto device = make_cpu_device();
  for (const Node& node : graph.nodes) {
    std::vector<Tensor> inputs;
    for (const ValueId value : node.inputs) {
      inputs.push_back(value == kNone ? Tensor{{DataType::Token, {}}, {}} : known[value]);
    }
    std::vector<TensorType> types;
    for (const ValueId value : node.outputs) {
      types.push_back(value == kNone ? TensorType{DataType::Token, {}} : graph.values[value].type);
    }
    Outcome outcome = run_kernel(*device, node, types, inputs, {.scalars = scalars, .share_aliases = false});
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != kNone) known[node.outputs[i]] = std::move(outcome.outputs[i]);
    }
  }
}

// An error of `tolerance` by norm is spread over the elements. Among very many elements, the largest error is about
// this many times as large.
constexpr double kPeak = 8;

// "" or which of the elements, in memory order, are farther from the oracle's than the tolerance allows. Errors of
// sums do not shrink with the sum: an element may be off by as much as one of the usual size.
std::string judge_elements(const Tensor& found, const Tensor& oracle, double tolerance) {
  const std::vector<double> a = values_of(found), b = values_of(oracle);
  Shape shape = oracle.type.shape;
  if (oracle.type.layout == Layout::ChannelsLast) std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
  return worst_element(shape, a, b, {kPeak * tolerance * root_mean_square(b), kPeak * tolerance});
}

// The median of the times, in µs, that `run` takes over so many seconds; at least three are taken.
template <typename Run>
double median_time(double seconds, const Run& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (times.size() < 3 || Clock::now() < end) {
    const Clock::time_point began = Clock::now();
    run();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
  }
  std::nth_element(times.begin(), times.begin() + int64_t(times.size() / 2), times.end());
  return times[times.size() / 2];
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

std::unique_ptr<TestDevice> make_cpu_device() {
  static const std::shared_ptr<void> idle_threads = let_idle_threads_sleep();
  return std::make_unique<CpuDevice>();
}

Tensor make_tensor(const TensorType& type, const std::vector<double>& values) {
  Tensor tensor{type, std::vector<std::byte>(size_t(type.bytes()))};
  switch (type.dtype) {
    case DataType::Float32: narrow_all<float>(values, tensor); break;
    case DataType::Float64: narrow_all<double>(values, tensor); break;
    case DataType::Bfloat16: narrow_all<bfloat16>(values, tensor); break;
    case DataType::Bool:
    case DataType::Uint8: narrow_all<uint8_t>(values, tensor); break;
    case DataType::Int32: narrow_all<int32_t>(values, tensor); break;
    case DataType::Int64: narrow_all<int64_t>(values, tensor); break;
    case DataType::String:
    case DataType::Token: break;
  }
  return tensor;
}

std::vector<double> values_of(const Tensor& tensor) {
  switch (tensor.type.dtype) {
    case DataType::Float32: return widen_all<float>(tensor);
    case DataType::Float64: return widen_all<double>(tensor);
    case DataType::Bfloat16: return widen_all<bfloat16>(tensor);
    case DataType::Bool:
    case DataType::Uint8: return widen_all<uint8_t>(tensor);
    case DataType::Int32: return widen_all<int32_t>(tensor);
    case DataType::Int64: return widen_all<int64_t>(tensor);
    case DataType::String:
    case DataType::Token: break;
  }
  return {};
}

Tensor converted(const Tensor& tensor, DataType type) {
  return tensor.type.dtype == type ? tensor
                                   : make_tensor({type, tensor.type.shape, tensor.type.layout}, values_of(tensor));
}

Case::Case(const Op& op, const std::vector<TensorType>& inputs, int output_count, const Attributes& attributes,
           const std::string& name) {
  graph.registry = &builtin_ops();
  std::vector<ValueId> ids;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dtype == DataType::Token) {
      ids.push_back(kNone);  // left out
      continue;
    }
    const TensorType type = op.layout ? inputs[i].in(*op.layout) : inputs[i];  // as place_layouts would have it
    ids.push_back(graph.add_value("input_" + std::to_string(i), type, Role::Input));
  }
  node = graph.add_node(op, name, ids, output_count, attributes);
  infer(graph, node);
}

std::vector<TensorType> Case::input_types() const {
  std::vector<TensorType> types;
  for (const ValueId value : get().inputs) types.push_back(graph.values[value].type);
  return types;
}

std::vector<TensorType> Case::output_types() const {
  std::vector<TensorType> types;
  for (const ValueId value : get().outputs) types.push_back(graph.values[value].type);
  return types;
}

Outcome run_kernel(TestDevice& device, const Node& node, const std::vector<TensorType>& output_types,
                   const std::vector<Tensor>& inputs, const RunOptions& options) {
  const auto kernel = device.factory(*node.op)({.node = node,
                                                .inputs = types_of(inputs),
                                                .outputs = output_types,
                                                .math = options.math,
                                                .deterministic = options.deterministic,
                                                .concurrent = options.concurrent,
                                                .device = device.context()});
  std::vector<Buffer> in, out;
  std::vector<const void*> in_pointers;
  std::vector<void*> out_pointers;
  std::vector<int> shared_with(output_types.size(), -1);
  if (options.share_aliases) {
    for (const auto& [output, input] : node.op->aliases) {
      const bool given = size_t(input) < inputs.size() && inputs[size_t(input)].type.dtype != DataType::Token;
      if (given && size_t(output) < shared_with.size()) shared_with[size_t(output)] = input;
    }
    for (const auto& [output, input] : node.op->overwrites) {
      if (size_t(input) >= inputs.size() || size_t(output) >= shared_with.size()) continue;
      if (inputs[size_t(input)].type == output_types[size_t(output)]) shared_with[size_t(output)] = input;
    }
  }
  for (const Tensor& tensor : inputs) {
    in.emplace_back(device, tensor.bytes.size());
    in_pointers.push_back(tensor.type.dtype == DataType::Token ? nullptr : in.back().data());
  }
  for (size_t i = 0; i < output_types.size(); ++i) {
    out.emplace_back(device, size_t(output_types[i].bytes()));
    void* own = output_types[i].dtype == DataType::Token ? nullptr : out.back().data();
    out_pointers.push_back(shared_with[i] >= 0 ? in[size_t(shared_with[i])].data() : own);
  }
  Buffer workspace(device, size_t(kernel->workspace_bytes())), scalars(device, sizeof(StepScalars));
  device.upload(scalars.data(), &options.scalars, sizeof(StepScalars));
  const KernelContext context{.stream = device.stream(),
                              .inputs = in_pointers.data(),
                              .outputs = out_pointers.data(),
                              .workspace = workspace.data(),
                              .scalars = static_cast<const StepScalars*>(scalars.data())};
  const auto set_inputs = [&] {
    for (size_t i = 0; i < in.size(); ++i) in[i].set(inputs[i].bytes);
    for (Buffer& buffer : out) buffer.fill(kPoison);
  };
  if (options.replays > 0) {
    // The recording is made with zeros for inputs: what it computes must come from memory at replay.
    for (size_t i = 0; i < in.size(); ++i) in[i].set(std::vector<std::byte>(inputs[i].bytes.size()));
    device.record(*kernel, context);
    for (int replay = 0; replay < options.replays; ++replay) {
      set_inputs();
      device.replay();
    }
  } else {
    set_inputs();
    device.run(*kernel, context);
  }

  Outcome outcome;
  if (options.measure > 0) {
    outcome.microseconds = median_time(options.measure, [&] {
      if (options.replays > 0) {
        device.replay();
      } else {
        device.run(*kernel, context);
      }
    });
  }
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].guards_intact()) outcome.fault += fmt::format("wrote outside input {}; ", i);
    const bool shared = std::find(shared_with.begin(), shared_with.end(), int(i)) != shared_with.end();
    if (!shared && in[i].content() != inputs[i].bytes) outcome.fault += fmt::format("changed input {}; ", i);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (!out[i].guards_intact()) outcome.fault += fmt::format("wrote outside output {}; ", i);
    outcome.outputs.push_back(
        {output_types[i], shared_with[i] >= 0 ? in[size_t(shared_with[i])].content() : out[i].content()});
  }
  if (!workspace.guards_intact()) outcome.fault += "wrote outside the workspace; ";
  if (!scalars.guards_intact()) outcome.fault += "wrote outside the scalars; ";
  return outcome;
}

double relative_error(const Tensor& out, const Tensor& reference) {
  const std::vector<double> a = values_of(out), b = values_of(reference);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

std::vector<Tensor> draw_inputs(const Op& op, const Sample& sample, DataType type, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    TensorType drawn = op.layout ? sample.inputs[i].type.in(*op.layout) : sample.inputs[i].type;
    drawn.dtype = operand_type(op.input_spec(i), drawn.dtype, type);
    inputs.push_back(make_tensor(drawn, draw(sample.inputs[i], random)));
  }
  return inputs;
}

std::string compare_with_oracle(TestDevice& device, const Op& op, const Sample& sample, DataType type,
                                const RunOptions& options, double tolerance) {
  const std::vector<Tensor> inputs = draw_inputs(op, sample, type, seed_of(op, sample));
  const Case test(op, types_of(inputs), sample.output_count, sample.attributes);
  RunOptions with_scalars = options;
  with_scalars.scalars = sample.scalars;
  const Outcome outcome = run_kernel(device, test.get(), lowered_outputs(test, type), inputs, with_scalars);
  if (!outcome.fault.empty()) return outcome.fault;

  std::vector<Tensor> wide;
  for (const Tensor& input : inputs) {
    wide.push_back(is_floating(input.type.dtype) ? converted(input, DataType::Float64) : input);
  }
  const Case oracle(op, types_of(wide), sample.output_count, sample.attributes);
  OracleDevice device_of_oracle;
  const Outcome reference = run_kernel(device_of_oracle, oracle.get(), lowered_outputs(oracle, DataType::Float64), wide,
                                       {.scalars = sample.scalars, .share_aliases = sample.in_place});
  if (!reference.fault.empty()) return "oracle: " + reference.fault;
  for (size_t i = 0; i < outcome.outputs.size(); ++i) {
    if (outcome.outputs[i].type.shape != reference.outputs[i].type.shape) return fmt::format("output {}: shape", i);
    const double error = relative_error(outcome.outputs[i], reference.outputs[i]);
    if (!(error <= tolerance)) return fmt::format("output {}: relative error {:.3g} above {:.3g}", i, error, tolerance);
    const std::string worst = judge_elements(outcome.outputs[i], reference.outputs[i], tolerance);
    if (!worst.empty()) return fmt::format("output {}: {}", i, worst);
  }
  return "";
}

namespace {

// The gradient that flows back from some outputs of a sample's node, compared with finite differences.
class GradientCheck {
 public:
  GradientCheck(const Op& op, const Sample& sample)
      : op_(op),
        sample_(sample),
        inputs_(draw_inputs(op, sample, DataType::Float64, seed_of(op, sample))),
        forward_(op, types_of(inputs_), sample.output_count, sample.attributes) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      needed_.push_back(sample.inputs[i].differentiable && is_floating(inputs_[i].type.dtype));
    }
  }

  // Whether any input has a gradient.
  bool applies() const { return std::find(needed_.begin(), needed_.end(), true) != needed_.end(); }

  // The floating outputs that op.grad takes gradients of.
  std::vector<size_t> outputs() const {
    std::vector<size_t> found;
    for (size_t k = 0; k < forward_.get().outputs.size(); ++k) {
      const ValueId value = forward_.get().outputs[k];
      if (value == kNone || !is_floating(forward_.graph.values[value].type.dtype)) continue;
      try {
        const Backward tried(*this, {k});
      } catch (const GraphError&) {
        if (k == 0) throw;
        continue;
      }
      found.push_back(k);
    }
    return found;
  }

  // "" or the fault.
  std::string fault(const std::vector<size_t>& seeded) const;

 private:
  // The graph with the gradient's nodes added to it.
  struct Backward {
    Case test;
    std::vector<ValueId> seeds;      // the gradient of each of the outputs
    std::vector<ValueId> gradients;  // of the inputs; kNone: none

    Backward(const GradientCheck& check, const std::vector<size_t>& seeded)
        : test(check.forward_), gradients(check.inputs_.size(), kNone) {
      Graph& graph = test.graph;
      std::vector<ValueId> output_gradients(test.get().outputs.size(), kNone);
      for (const size_t k : seeded) {
        const TensorType type = graph.values[test.get().outputs[k]].type;
        seeds.push_back(graph.add_value(fmt::format("r{}", k), type, Role::Input));
        output_gradients[k] = seeds.back();
      }
      GradContext context(graph, test.node, output_gradients, check.needed_, gradients);
      check.op_.grad(context);
      for (size_t i = 0; i < gradients.size(); ++i) {  // as autodiff does
        if (gradients[i] == kNone) continue;
        gradients[i] = in_layout(graph, gradients[i], check.inputs_[i].type.layout, test.get());
      }
    }
  };

  const Op& op_;
  const Sample& sample_;
  const std::vector<Tensor> inputs_;
  const Case forward_;
  std::vector<bool> needed_;
};

std::string GradientCheck::fault(const std::vector<size_t>& seeded) const {
  Backward backward(*this, seeded);
  const Graph& graph = backward.test.graph;
  const std::vector<Tensor>& inputs = inputs_;
  const std::vector<ValueId>& gradients = backward.gradients;
  const Node& node = forward_.get();

  std::mt19937_64 random(seed_of(op_, sample_) + 1);
  Table<ValueId, Tensor> known(graph.values.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (node.inputs[i] != kNone) known[node.inputs[i]] = inputs[i];
  }
  std::vector<std::vector<double>> weights;  // r, by seeded output
  for (const ValueId seed : backward.seeds) {
    const TensorType& type = graph.values[seed].type;
    weights.push_back(draw({type}, random));
    known[seed] = make_tensor(type, weights.back());
  }
  evaluate(graph, known, sample_.scalars);

  const auto functional = [&](size_t moved, const std::vector<double>& values) {
    Table<ValueId, Tensor> trial(forward_.graph.values.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (node.inputs[i] != kNone) trial[node.inputs[i]] = inputs[i];
    }
    trial[node.inputs[moved]] = make_tensor(inputs[moved].type, values);
    evaluate(forward_.graph, trial, sample_.scalars);
    double sum = 0;
    for (size_t k = 0; k < seeded.size(); ++k) {
      sum += dot(weights[k], values_of(trial[node.outputs[seeded[k]]]));
    }
    return sum;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!needed_[i]) continue;
    if (gradients[i] == kNone) return fmt::format("no gradient for input {}", i);
    const Tensor& gradient = known[gradients[i]];
    if (gradient.type.dtype != inputs[i].type.dtype || gradient.type.shape != inputs[i].type.shape)
      return fmt::format("the gradient of input {} is {}", i, to_string(gradient.type));
    const std::vector<double> analytic = values_of(gradient), at = values_of(inputs[i]);
    if (at.empty()) continue;
    // Along a random direction, and along single elements of small inputs.
    std::vector<std::vector<double>> directions = {draw({inputs[i].type}, random)};
    const size_t singles = at.size() > 4000 ? 0 : std::min<size_t>(at.size(), 8);
    for (size_t k = 0; k < singles; ++k) {
      directions.emplace_back(at.size(), 0.0);
      directions.back()[random() % at.size()] = 1;
    }
    const double largest = std::abs(*std::max_element(analytic.begin(), analytic.end(),
                                                      [](double a, double b) { return std::abs(a) < std::abs(b); }));
    for (const std::vector<double>& direction : directions) {
      constexpr double kStep = 1e-6;
      std::vector<double> ahead = at, behind = at;
      for (size_t k = 0; k < at.size(); ++k) {
        ahead[k] += kStep * direction[k];
        behind[k] -= kStep * direction[k];
      }
      const double numeric = (functional(i, ahead) - functional(i, behind)) / (2 * kStep);
      const double expected = dot(analytic, direction);
      const double scale = std::max({std::abs(numeric), std::abs(expected), largest, 1e-2});
      if (!(std::abs(numeric - expected) <= 1e-5 * scale)) {
        return fmt::format("input {}: the gradient is {:.8g}, finite differences give {:.8g}", i, expected, numeric);
      }
    }
  }
  return "";
}

}  // namespace

std::string check_gradient(const Op& op, const Sample& sample) {
  const GradientCheck check(op, sample);
  if (!check.applies()) return "";
  const std::vector<size_t> outputs = check.outputs();
  for (const size_t k : outputs) {
    const std::string fault = check.fault({k});
    if (!fault.empty()) return k == 0 ? fault : fmt::format("of output {}: {}", k, fault);
  }
  return outputs.size() > 1 ? check.fault(outputs) : "";
}

Performance measure_sample(TestDevice& device, const Op& op, const Sample& sample, DataType type, double seconds) {
  const std::vector<Tensor> inputs = draw_inputs(op, sample, type, seed_of(op, sample));
  const Case test(op, types_of(inputs), sample.output_count, sample.attributes);
  const RunOptions options{.scalars = sample.scalars, .replays = device.can_record() ? 1 : 0, .measure = seconds};
  const Outcome outcome = run_kernel(device, test.get(), lowered_outputs(test, type), inputs, options);
  return {outcome.microseconds, cost_of(test.graph, test.get())};
}

}  // namespace arbalest::test
