// SPDX-License-Identifier: Apache-2.0

// This file and cudnn_attention.cpp alone include cudnn-frontend, which takes long to compile.

#include "ops/cuda/cudnn_graph.h"
#include "base/files/cache_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "ops/cuda/convolution_choices.h"
#include "ops/cuda/convolution_timer.h"

namespace arbalest {
namespace {

namespace fe = cudnn_frontend;
using Kind = ConvolutionProblem::Kind;

// Identifiers of the operands in every graph.
enum ConvolutionUid : int64_t { kOperandA = 1, kOperandB = 2, kAddedBias = 3, kOutput = 4 };

constexpr int kCandidates = 8;  // engines tried, in the heuristics' order, before more are asked for
constexpr double kFar = 16;     // times the limit: so slow an engine is worth a look at all the others

fe::DataType_t frontend_type(DataType type) {
  switch (type) {
    case DataType::Float32: return fe::DataType_t::FLOAT;
    case DataType::Bfloat16: return fe::DataType_t::BFLOAT16;
    default: throw RunError(fmt::format("cuDNN convolutions take float and bfloat16; found {}", name_of(type)));
  }
}

// Strides of a channels-last tensor, in the order of its logical extents.
std::vector<int64_t> channels_last_strides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  int64_t step = shape[1];
  for (size_t axis = shape.size() - 1; axis > 1; --axis) {
    strides[axis] = step;
    step *= shape[axis];
  }
  strides[0] = step;
  return strides;
}

}  // namespace

std::string ConvolutionProblem::key() const {
  return fmt::format("{}{} {}>{} x{} w{} y{} s{} d{} p{}+{} {}{} {} {}", int(kind), relu ? "relu" : "", int(type),
                     int(output_type), x, w, y, stride, dilation, pad_begin, pad_end, tf32 ? "tf32" : "",
                     deterministic ? "deterministic" : "", workspace_limit, concurrent);
}

const Shape& ConvolutionProblem::output_shape() const {
  return kind == Kind::GradInput ? x : kind == Kind::GradWeight ? w : y;
}

struct ConvolutionPlan::State {
  fe::graph::Graph graph;
  int64_t index = 0;  // of the engine
  bool has_bias = false;
  std::mutex mutex;  // the frontend keeps scratch in its graph
};

ConvolutionPlan::ConvolutionPlan() : state_(std::make_unique<State>()) {}
ConvolutionPlan::~ConvolutionPlan() = default;

void ConvolutionPlan::run(CudaContext& context, const ConvolutionCall& call) const {
  std::unordered_map<int64_t, void*> operands = {
      {kOperandA, const_cast<void*>(call.a)}, {kOperandB, const_cast<void*>(call.b)}, {kOutput, call.result}};
  if (state_->has_bias) operands.emplace(kAddedBias, const_cast<float*>(call.bias));
  const HandlePool::Lease handles(context.handles);
  CUDNN_CHECK(cudnnSetStream(handles->cudnn, call.stream));
  const std::scoped_lock lock(state_->mutex);
  auto status = state_->graph.execute_plan_at_index(handles->cudnn, operands, call.workspace, state_->index);
  if (status.is_bad()) throw RunError(fmt::format("cuDNN convolution ({}): {}", engine_, status.get_message()));
}

namespace {

std::string convolution_key(const CudaContext& context, const ConvolutionProblem& problem) {
  return context.model.name + ' ' + problem.key();
}

}  // namespace

// Makes the plan of one problem for one context.
class ConvolutionPlanner {
 public:
  ConvolutionPlanner(CudaContext& context, const ConvolutionProblem& problem)
      : context_(context), problem_(problem), plan_(std::make_shared<ConvolutionPlan>()) {}

  std::shared_ptr<const ConvolutionPlan> make() {
    plan_->state_->has_bias = problem_.kind == Kind::ForwardBias;
    if (!propose()) return nullptr;
    // The heuristics repeat themselves on devices of one kind, with the same libraries; if they do not, an engine is
    // chosen anew.
    const auto fits = [this](const ConvolutionChoice& known) {
      return known.index < graph().get_execution_plan_count() && engine_at(known.index) == known.engine &&
             build(known.index);
    };
    const ConvolutionChoice choice =
        ConvolutionChoices::of_process().find(convolution_key(context_, problem_), fits, [this] { return choose(); });
    if (choice.index < 0) return nullptr;
    plan_->state_->index = choice.index;
    plan_->workspace_bytes_ = workspace_at(choice.index);
    plan_->microseconds_ = choice.microseconds;
    plan_->engine_ = choice.engine;
    return plan_;
  }

 private:
  fe::graph::Graph& graph() { return plan_->state_->graph; }

  std::shared_ptr<fe::graph::Tensor_attributes> tensor(const char* name, ConvolutionUid uid, const Shape& shape,
                                                       DataType type) {
    return graph().tensor(fe::graph::Tensor_attributes()
                              .set_name(name)
                              .set_uid(uid)
                              .set_dim(shape)
                              .set_stride(channels_last_strides(shape))
                              .set_data_type(frontend_type(type)));
  }

  template <typename Attributes>
  Attributes convolution() const {
    Attributes attributes;
    attributes.set_pre_padding(problem_.pad_begin)
        .set_post_padding(problem_.pad_end)
        .set_stride(problem_.stride)
        .set_dilation(problem_.dilation);
    return attributes;
  }

  std::shared_ptr<fe::graph::Tensor_attributes> of_y(const std::shared_ptr<fe::graph::Tensor_attributes>& tensor) {
    tensor->set_dim(problem_.y).set_stride(channels_last_strides(problem_.y));
    return tensor;
  }

  // (y + |y|) / 2. cuDNN's own Relu does not promise that NaN stays NaN.
  std::shared_ptr<fe::graph::Tensor_attributes> rectified(const std::shared_ptr<fe::graph::Tensor_attributes>& y) {
    const auto mode = [](fe::PointwiseMode_t mode) { return fe::graph::Pointwise_attributes().set_mode(mode); };
    const Shape ones(problem_.y.size(), 1);
    const auto half = graph().tensor(fe::graph::Tensor_attributes(0.5f).set_dim(ones).set_stride(ones));
    const auto magnitude = of_y(graph().pointwise(y, mode(fe::PointwiseMode_t::ABS)));
    const auto twice = of_y(graph().pointwise(y, magnitude, mode(fe::PointwiseMode_t::ADD)));
    return graph().pointwise(twice, half, mode(fe::PointwiseMode_t::MUL));
  }

  // The result tensor of the operation graph.
  std::shared_ptr<fe::graph::Tensor_attributes> operation() {
    switch (problem_.kind) {
      case Kind::Forward:
      case Kind::ForwardBias: {
        auto y = graph().conv_fprop(tensor("x", kOperandA, problem_.x, problem_.type),
                                    tensor("w", kOperandB, problem_.w, problem_.type),
                                    convolution<fe::graph::Conv_fprop_attributes>());
        if (problem_.kind == Kind::ForwardBias) {
          Shape bias(problem_.y.size(), 1);
          bias[1] = problem_.y[1];
          y = graph().pointwise(of_y(y), tensor("bias", kAddedBias, bias, DataType::Float32),
                                fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
        }
        return problem_.relu ? rectified(of_y(y)) : y;
      }
      case Kind::GradInput:
        return graph().conv_dgrad(tensor("dy", kOperandA, problem_.y, problem_.type),
                                  tensor("w", kOperandB, problem_.w, problem_.type),
                                  convolution<fe::graph::Conv_dgrad_attributes>());
      case Kind::GradWeight: {
        const auto x = tensor("x", kOperandA, problem_.x, problem_.type);
        return graph().conv_wgrad(tensor("dy", kOperandB, problem_.y, problem_.type), x,
                                  convolution<fe::graph::Conv_wgrad_attributes>());
      }
    }
    return nullptr;
  }

  // Asks the heuristics for engines, and bars those that break the problem's numerical rules. False: there are none.
  bool propose() {
    graph()
        .set_io_data_type(frontend_type(problem_.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    operation()
        ->set_output(true)
        .set_uid(kOutput)
        .set_dim(problem_.output_shape())
        .set_stride(channels_last_strides(problem_.output_shape()))
        .set_data_type(frontend_type(problem_.output_type));
    if (graph().validate().is_bad() || graph().build_operation_graph(handles_->cudnn).is_bad() ||
        graph().create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}).is_bad()) {
      return false;
    }
    std::vector<fe::NumericalNote_t> barred = {fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION,
                                               fe::NumericalNote_t::WINOGRAD_TILE_13x13};
    if (problem_.type == DataType::Float32) {
      barred.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
      barred.push_back(fe::NumericalNote_t::WINOGRAD_TILE_6x6);
      if (!problem_.tf32) barred.push_back(fe::NumericalNote_t::TENSOR_CORE);
    }
    if (problem_.deterministic) barred.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
    graph().deselect_numeric_notes(barred);
    graph().deselect_workspace_greater_than(problem_.workspace_limit);
    return graph().get_execution_plan_count() > 0;
  }

  bool build(int64_t index) {
    return graph().build_plan_at_index(index).is_good() && workspace_at(index) <= problem_.workspace_limit;
  }
  int64_t workspace_at(int64_t index) { return std::max<int64_t>(0, graph().get_workspace_size_plan_at_index(index)); }
  std::string engine_at(int64_t index) {
    std::string name;
    return graph().get_plan_name_at_index(index, name).is_good() ? name : std::string();
  }

  // The time in µs that its bytes, or its products, would take alone.
  double limit() const {
    const DeviceModel& model = context_.model;
    const auto bytes = [](const Shape& shape, DataType type) { return element_count(shape) * int64_t(size_of(type)); };
    const Shape& result = problem_.output_shape();
    int64_t moved = bytes(result, problem_.output_type);
    for (const Shape* shape : {&problem_.x, &problem_.w, &problem_.y}) {
      if (shape != &result) moved += bytes(*shape, problem_.type);
    }
    const double pixels = double(element_count(problem_.y) / problem_.y[1]);
    const double rate = problem_.type == DataType::Bfloat16 ? model.bf16_per_second
                        : problem_.tf32                     ? model.tf32_per_second
                                                            : model.fp32_per_second;
    return std::max(model.pass_microseconds(moved), 2e6 * double(element_count(problem_.w)) * pixels / rate);
  }

  // The fastest of the first kCandidates, or of later ones too while that is far from the limit.
  ConvolutionChoice choose() {
    const int64_t proposals = graph().get_execution_plan_count(), most = problem_.deterministic ? 1 : kCandidates;
    ConvolutionChoice best;
    for (int64_t next = 0; next < proposals && (best.index < 0 || best.microseconds > kFar * limit());) {
      std::vector<int64_t> built;
      for (; next < proposals && int64_t(built.size()) < most; ++next) {
        if (build(next)) built.push_back(next);
      }
      if (built.empty()) break;
      if (problem_.deterministic) return {built[0], engine_at(built[0]), 0};
      const ConvolutionChoice found = fastest(built);
      if (found.index >= 0 && (best.index < 0 || found.microseconds < best.microseconds)) best = found;
    }
    return best;
  }

  ConvolutionChoice fastest(const std::vector<int64_t>& candidates) {
    int64_t workspace = 0;
    for (const int64_t index : candidates) workspace = std::max(workspace, workspace_at(index));
    ConvolutionTimer timer(context_, problem_, workspace);
    std::vector<ConvolutionTimer::Call> calls;
    for (const int64_t index : candidates) {
      calls.push_back([this, index](const ConvolutionCall& call) {
        plan_->state_->index = index;
        plan_->run(context_, call);
      });
    }
    const auto [place, microseconds] = timer.fastest(calls);
    if (place < 0) return {};
    const int64_t index = candidates[size_t(place)];
    return {index, engine_at(index), microseconds};
  }

  CudaContext& context_;
  const HandlePool::Lease handles_{context_.handles};
  const ConvolutionProblem& problem_;
  std::shared_ptr<ConvolutionPlan> plan_;
};

ConvolutionChoices& ConvolutionChoices::of_process() {
  const auto file = [] {
    const std::filesystem::path folder = cache_folder();
    const auto name = fmt::format("convolutions-cudnn{}-cuda{}.tsv", cudnnGetVersion(), cudnnGetCudartVersion());
    return folder.empty() ? folder : folder / name;
  };
  static ConvolutionChoices choices(file());
  return choices;
}

double known_convolution_microseconds(const CudaContext& context, const ConvolutionProblem& problem) {
  return ConvolutionChoices::of_process().known_microseconds(convolution_key(context, problem));
}

std::shared_ptr<const ConvolutionPlan> find_convolution_plan(CudaContext& context, const ConvolutionProblem& problem) {
  return context.convolution_plans.find(problem.key(), [&] { return ConvolutionPlanner(context, problem).make(); });
}

}  // namespace arbalest
