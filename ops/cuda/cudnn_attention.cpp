// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cudnn_attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace arbalest {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Uid : int64_t { kQ = 1, kK, kV, kY, kStatistics, kDy, kDq, kDk, kDv, kBias, kDbias };

}  // namespace

std::string FusedAttentionProblem::key() const {
  std::string key =
      fmt::format("{} {} {} {} {} {}", gradient ? "gradient" : "forward", scale, deterministic ? "deterministic" : "",
                  workspace_limit, gradient_of_bias ? "bias" : "", causal ? "causal" : "");
  for (const AttentionOperand* each : {&q, &k, &v, &y, &bias})
    key += fmt::format(" {}:{}", each->extents, each->strides);
  return key;
}

struct FusedAttentionPlan::State {
  fe::graph::Graph graph;
  std::mutex mutex;  // the frontend keeps scratch in its graph
};

FusedAttentionPlan::FusedAttentionPlan() : state_(std::make_unique<State>()) {}
FusedAttentionPlan::~FusedAttentionPlan() = default;

void FusedAttentionPlan::run(CudaContext& context, cudaStream_t stream, const Operands& with, void* workspace) const {
  std::unordered_map<int64_t, void*> operands = {{kQ, const_cast<void*>(with.q)},
                                                 {kK, const_cast<void*>(with.k)},
                                                 {kV, const_cast<void*>(with.v)},
                                                 {kY, with.y},
                                                 {kStatistics, with.statistics}};
  if (with.dy != nullptr) {
    operands.insert({{kDy, const_cast<void*>(with.dy)}, {kDq, with.dq}, {kDk, with.dk}, {kDv, with.dv}});
  }
  if (with.bias != nullptr) operands.insert({kBias, const_cast<void*>(with.bias)});
  if (with.dbias != nullptr) operands.insert({kDbias, with.dbias});
  const HandlePool::Lease handles(context.handles);
  CUDNN_CHECK(cudnnSetStream(handles->cudnn, stream));
  const std::scoped_lock lock(state_->mutex);
  auto status = state_->graph.execute(handles->cudnn, operands, workspace);
  if (status.is_bad()) throw RunError(fmt::format("cuDNN attention: {}", status.get_message()));
}

// Makes the plan of one problem for one context.
class FusedAttentionPlanner {
 public:
  FusedAttentionPlanner(CudaContext& context, const FusedAttentionProblem& problem)
      : context_(context), problem_(problem), plan_(std::make_shared<FusedAttentionPlan>()) {}

  std::shared_ptr<const FusedAttentionPlan> make() {
    graph()
        .set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    problem_.gradient ? add_gradient() : add_forward();
    const HandlePool::Lease handles(context_.handles);
    if (graph().validate().is_bad() || graph().build_operation_graph(handles->cudnn).is_bad() ||
        graph().create_execution_plans({fe::HeurMode_t::A}).is_bad()) {
      return nullptr;
    }
    graph().deselect_workspace_greater_than(problem_.workspace_limit);
    if (graph().check_support().is_bad() || graph().build_plans().is_bad()) return nullptr;
    int64_t bytes = 0;
    if (graph().get_workspace_size(bytes).is_bad()) return nullptr;
    plan_->workspace_bytes_ = std::max<int64_t>(0, bytes);
    return plan_;
  }

 private:
  fe::graph::Graph& graph() { return plan_->state_->graph; }

  Tensor operand(Uid uid, const AttentionOperand& of) {
    return graph().tensor(fe::graph::Tensor_attributes()
                              .set_uid(uid)
                              .set_dim(of.extents)
                              .set_stride(of.strides)
                              .set_data_type(fe::DataType_t::BFLOAT16));
  }

  void result(const Tensor& tensor, Uid uid, const AttentionOperand& of) {
    tensor->set_output(true).set_uid(uid).set_dim(of.extents).set_stride(of.strides);
  }

  bool biased() const { return !problem_.bias.extents.empty(); }

  AttentionOperand statistics() const {
    const int64_t samples = problem_.y.extents[0], heads = problem_.y.extents[1], rows = problem_.y.extents[2];
    return {{samples, heads, rows, 1}, {heads * rows, rows, 1, 1}};
  }

  void add_forward() {
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention")
                          .set_generate_stats(true)
                          .set_attn_scale(problem_.scale)
                          .set_causal_mask(problem_.causal);
    if (biased()) attributes.set_bias(operand(kBias, problem_.bias));
    auto [y, sums] =
        graph().sdpa(operand(kQ, problem_.q), operand(kK, problem_.k), operand(kV, problem_.v), attributes);
    result(y, kY, problem_.y);
    result(sums, kStatistics, statistics());
    sums->set_data_type(fe::DataType_t::FLOAT);
  }

  void add_gradient() {
    const Tensor sums = operand(kStatistics, statistics());
    sums->set_data_type(fe::DataType_t::FLOAT);
    auto attributes = fe::graph::SDPA_backward_attributes()
                          .set_name("attention_grad")
                          .set_attn_scale(problem_.scale)
                          .set_causal_mask(problem_.causal)
                          .set_deterministic_algorithm(problem_.deterministic);
    if (biased()) attributes.set_bias(operand(kBias, problem_.bias));
    if (problem_.gradient_of_bias) attributes.set_dbias(operand(kDbias, problem_.bias));
    auto [dq, dk, dv] = graph().sdpa_backward(operand(kQ, problem_.q), operand(kK, problem_.k), operand(kV, problem_.v),
                                              operand(kY, problem_.y), operand(kDy, problem_.y), sums, attributes);
    result(dq, kDq, problem_.q);
    result(dk, kDk, problem_.k);
    result(dv, kDv, problem_.v);
  }

  CudaContext& context_;
  const FusedAttentionProblem& problem_;
  std::shared_ptr<FusedAttentionPlan> plan_;
};

std::shared_ptr<const FusedAttentionPlan> find_attention_plan(CudaContext& context,
                                                              const FusedAttentionProblem& problem) {
  return context.attention_plans.find(problem.key(), [&] { return FusedAttentionPlanner(context, problem).make(); });
}

}  // namespace arbalest
