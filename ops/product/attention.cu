// SPDX-License-Identifier: Apache-2.0

// Attention and its gradients on CUDA. If operands are bfloat16, kernels of ours take few rows and cuDNN's fused
// engines more. Plain kernels, a warp a row, take floats, and problems that no engine supports.

#include "ops/product/attention.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/cudnn_attention.h"
#include "ops/product/kernel_engines.h"
#include "ops/product/short_attention.h"

namespace arbalest {

using namespace cuda;

namespace {

constexpr int kMostDepth = 256;
constexpr int kOfLane = kMostDepth / 32;  // elements of a row that one lane holds at most

// A row's elements lane, lane + 32, …; zeros past its end.
struct LaneRow {
  float element[kOfLane];

  template <typename T>
  __device__ LaneRow(const T* row, int depth, int lane) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) element[i] = lane + 32 * i < depth ? widen(row[lane + 32 * i]) : 0.0f;
  }
  __device__ LaneRow() : element() {}

  template <typename T>
  __device__ float dot(const T* row, int depth, int lane) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (lane + 32 * i < depth) sum += element[i] * widen(row[lane + 32 * i]);
    }
    return warp_sum(sum);
  }

  template <typename T>
  __device__ void add(float factor, const T* row, int depth, int lane) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (lane + 32 * i < depth) element[i] += factor * widen(row[lane + 32 * i]);
    }
  }

  template <typename T>
  __device__ void store(float factor, T* row, int depth, int lane) const {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (lane + 32 * i < depth) row[lane + 32 * i] = narrow<T>(element[i] * factor);
    }
  }
};

struct AttentionExtents {
  int64_t samples, heads, queries, keys;
  int depth;
  HeadSteps q, k, v, y, bias;
  int64_t bias_samples, bias_heads;  // that have some of their own
  float scale;
};

__device__ inline int64_t place(const HeadSteps& steps, int64_t sample, int64_t head, int64_t row) {
  return steps.first + sample * steps.sample + head * steps.head + row * steps.row;
}

// f(sample, head, row, lane) for each row of each head; all lanes of a warp call it together.
template <typename Function>
__device__ inline void for_each_row(const AttentionExtents& e, int64_t rows, Function f) {
  for (int64_t i = thread_index() / 32; i < e.samples * e.heads * rows; i += thread_count() / 32) {
    f(i / rows / e.heads, i / rows % e.heads, i % rows, int(threadIdx.x) % 32);
  }
}

// Bias of the score of a key, of which samples take turns; 0 if `bias` is null.
template <typename T>
__device__ inline float bias_of(const AttentionExtents& e, const T* bias, int64_t sample, int64_t head, int64_t row,
                                int64_t key) {
  return bias != nullptr ? widen(bias[place(e.bias, sample % e.bias_samples, head, row) + key]) : 0.0f;
}

// Writes y and statistics (samples, heads, queries). Sums are rescaled when a larger score comes.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(AttentionExtents e, const T* q, const T* k, const T* v, const T* bias, T* y, float* statistics) {
  for_each_row(e, e.queries, [&](int64_t sample, int64_t head, int64_t row, int lane) {
    const LaneRow query(q + place(e.q, sample, head, row), e.depth, lane);
    LaneRow sums;
    float largest = -INFINITY, total = 0;
    for (int64_t key = 0; key < e.keys; ++key) {
      const float score = e.scale * query.dot(k + place(e.k, sample, head, key), e.depth, lane) +
                          bias_of(e, bias, sample, head, row, key);
      if (score == -INFINITY) continue;  // a mask hides it, maybe before any score was finite
      const float above = fmaxf(largest, score), before = expf(largest - above), weight = expf(score - above);
      largest = above;
      total = total * before + weight;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) sums.element[i] *= before;
      sums.add(weight, v + place(e.v, sample, head, key), e.depth, lane);
    }
    sums.store(1 / total, y + place(e.y, sample, head, row), e.depth, lane);
    if (statistics != nullptr && lane == 0) {
      statistics[(sample * e.heads + head) * e.queries + row] = largest + logf(total);
    }
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    grad_queries_kernel(AttentionExtents e, const T* q, const T* k, const T* v, const T* y, const float* statistics,
                        const T* dy, const T* bias, T* dq) {
  for_each_row(e, e.queries, [&](int64_t sample, int64_t head, int64_t row, int lane) {
    const LaneRow query(q + place(e.q, sample, head, row), e.depth, lane);
    const LaneRow slope(dy + place(e.y, sample, head, row), e.depth, lane);
    const float mean = slope.dot(y + place(e.y, sample, head, row), e.depth, lane);
    const float sum = statistics[(sample * e.heads + head) * e.queries + row];
    LaneRow sums;
    for (int64_t key = 0; key < e.keys; ++key) {
      const T* row_of_k = k + place(e.k, sample, head, key);
      const float added = bias_of(e, bias, sample, head, row, key);
      const float weight = expf(e.scale * query.dot(row_of_k, e.depth, lane) + added - sum);
      const float of_weight = slope.dot(v + place(e.v, sample, head, key), e.depth, lane);
      sums.add(weight * (of_weight - mean), row_of_k, e.depth, lane);
    }
    sums.store(e.scale, dq + place(e.q, sample, head, row), e.depth, lane);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    grad_keys_kernel(AttentionExtents e, const T* q, const T* k, const T* v, const T* y, const float* statistics,
                     const T* dy, const T* bias, T* dk, T* dv) {
  for_each_row(e, e.keys, [&](int64_t sample, int64_t head, int64_t key, int lane) {
    const LaneRow row_of_k(k + place(e.k, sample, head, key), e.depth, lane);
    const LaneRow row_of_v(v + place(e.v, sample, head, key), e.depth, lane);
    LaneRow k_sums, v_sums;
    for (int64_t row = 0; row < e.queries; ++row) {
      const T *query = q + place(e.q, sample, head, row), *slope = dy + place(e.y, sample, head, row);
      const float sum = statistics[(sample * e.heads + head) * e.queries + row];
      const float added = bias_of(e, bias, sample, head, row, key);
      const float weight = expf(e.scale * row_of_k.dot(query, e.depth, lane) + added - sum);
      const float mean = LaneRow(slope, e.depth, lane).dot(y + place(e.y, sample, head, row), e.depth, lane);
      k_sums.add(weight * (row_of_v.dot(slope, e.depth, lane) - mean), query, e.depth, lane);
      v_sums.add(weight, slope, e.depth, lane);
    }
    k_sums.store(e.scale, dk + place(e.k, sample, head, key), e.depth, lane);
    v_sums.store(1, dv + place(e.v, sample, head, key), e.depth, lane);
  });
}

// The gradient of the scores, summed over the samples and heads that have their biases in common.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    grad_bias_kernel(AttentionExtents e, const T* q, const T* k, const T* v, const T* y, const float* statistics,
                     const T* dy, const T* bias, T* dbias) {
  const AttentionExtents own{e.bias_samples, e.bias_heads};
  for_each_row(own, e.queries * e.keys, [&](int64_t bias_sample, int64_t bias_head, int64_t score, int lane) {
    const int64_t row = score / e.keys, key = score % e.keys;
    const int64_t last_head = e.bias_heads == 1 ? e.heads : bias_head + 1;
    const float added = bias_of(e, bias, bias_sample, bias_head, row, key);
    float total = 0;
    for (int64_t sample = bias_sample; sample < e.samples; sample += e.bias_samples) {
      for (int64_t head = bias_head; head < last_head; ++head) {
        const LaneRow query(q + place(e.q, sample, head, row), e.depth, lane);
        const LaneRow slope(dy + place(e.y, sample, head, row), e.depth, lane);
        const float product = query.dot(k + place(e.k, sample, head, key), e.depth, lane);
        const float weight = expf(e.scale * product + added - statistics[(sample * e.heads + head) * e.queries + row]);
        const float mean = slope.dot(y + place(e.y, sample, head, row), e.depth, lane);
        total += weight * (slope.dot(v + place(e.v, sample, head, key), e.depth, lane) - mean);
      }
    }
    if (lane == 0)
      dbias[((bias_sample * e.bias_heads + bias_head) * e.queries + row) * e.keys + key] = narrow<T>(total);
  });
}

AttentionExtents attention_extents(const AttentionProblem& p) {
  return {p.samples, p.heads, p.queries, p.keys,         int(p.depth), p.q,           p.k,
          p.v,       p.y,     p.bias,    p.bias_samples, p.bias_heads, float(p.scale)};
}

// How many samples take turns with a bias, as cuDNN does not know it: their heads can be taken for those of one sample
// if they lie like these. 1: none; 0: they lie otherwise.
int64_t turns_as_heads(const AttentionProblem& p) {
  if (p.bias_samples <= 1 || p.bias_samples == p.samples) return 1;
  const HeadSteps all[] = {p.q, p.k, p.v, p.y};
  const bool alike = p.bias_heads == p.heads &&
                     std::all_of(std::begin(all), std::end(all),
                                 [&](const HeadSteps& steps) { return steps.sample == p.heads * steps.head; });
  return alike ? p.bias_samples : 0;
}

// cuDNN knows causal masks by itself, and leaves out the products that they hide.
bool reads_bias(const AttentionProblem& p) {
  return p.biased() && !p.causal;
}

FusedAttentionProblem fused_problem(const KernelRequest& request, const AttentionProblem& p, bool gradient,
                                    bool gradient_of_bias) {
  const int64_t turns = turns_as_heads(p);
  const auto operand = [&](const HeadSteps& steps, int64_t rows) {
    return AttentionOperand{{p.samples / turns, turns * p.heads, rows, p.depth},
                            {turns * steps.sample, steps.head, steps.row, 1}};
  };
  const int64_t bias_samples = p.bias_samples / turns, bias_heads = turns * p.bias_heads;
  return {.gradient = gradient,
          .q = operand(p.q, p.queries),
          .k = operand(p.k, p.keys),
          .v = operand(p.v, p.keys),
          .y = operand(p.y, p.queries),
          .bias = reads_bias(p) ? AttentionOperand{{bias_samples, bias_heads, p.queries, p.keys},
                                                   {bias_heads * p.queries * p.keys, p.queries * p.keys, p.keys, 1}}
                                : AttentionOperand{},
          .gradient_of_bias = gradient_of_bias,
          .causal = p.causal,
          .scale = float(p.scale),
          .deterministic = request.deterministic,
          .workspace_limit = request.workspace_limit};
}

// Whether operands begin, in memory that begins there, at multiples of 16 bytes, as cuDNN's engines want it.
bool has_aligned_rows(const AttentionProblem& p) {
  return (p.q.first | p.k.first | p.v.first) % int64_t(16 / size_of(DataType::Bfloat16)) == 0;
}

// The operand of bfloat16 that lies in `memory`.
const void* operand_at(const void* memory, const HeadSteps& steps) {
  return static_cast<const bfloat16*>(memory) + steps.first;
}
void* operand_at(void* memory, const HeadSteps& steps) {
  return static_cast<bfloat16*>(memory) + steps.first;
}

// cuDNN's plan for bfloat16; nullptr: the kernels above take over. It writes statistics always.
std::shared_ptr<const FusedAttentionPlan> plan_for(const KernelRequest& request, const AttentionProblem& p,
                                                   bool gradient, bool gradient_of_bias = false) {
  const bool empty = p.samples * p.heads * p.queries * p.keys * p.depth == 0;
  if (request.inputs[0].dtype != DataType::Bfloat16 || empty || !has_aligned_rows(p) || turns_as_heads(p) == 0)
    return nullptr;
  if (!gradient && !request.has_output(AttentionOutput::Statistics)) return nullptr;
  return find_attention_plan(cuda_context(request), fused_problem(request, p, gradient, gradient_of_bias));
}

AttentionProblem checked_problem(const KernelRequest& request, bool gradient) {
  const AttentionProblem problem(request, gradient);
  if (problem.depth <= kMostDepth) return problem;
  throw RunError("node '" + request.node.name + "' (" + request.node.op->qualified_name() +
                 "): CUDA kernels take rows of up to " + std::to_string(kMostDepth) + " elements; found " +
                 std::to_string(problem.depth));
}

// cuDNN's plan for the gradients.
struct GradPlan {
  std::shared_ptr<const FusedAttentionPlan> plan;  // nullptr: kernels of ours take over
  bool of_bias;                                    // that of the biases too; else grad_bias_kernel computes it
};

// An engine for all gradients keeps the scores of all heads in its workspace, which may be more than there is. It adds
// up what samples and heads have in common in an order of its own.
GradPlan grad_plan_for(const KernelRequest& request, const AttentionProblem& p) {
  const bool in_common = p.bias_samples < p.samples || p.bias_heads < p.heads;
  if (request.has_output(p.at.dbias) && !(request.deterministic && in_common)) {
    if (auto plan = plan_for(request, p, true, true)) return {std::move(plan), true};
  }
  return {plan_for(request, p, true), false};
}

// Kernels of a row that find nothing to do with a problem are null: the next row is asked.
std::unique_ptr<Kernel> attention_of_few(const KernelRequest& request, const AttentionProblem& p) {
  return takes_short_attention(request, p) ? short_attention(request, p) : nullptr;
}

std::unique_ptr<Kernel> attention_by_cudnn(const KernelRequest& request, const AttentionProblem& p) {
  auto plan = plan_for(request, p, false);
  if (!plan) return nullptr;
  const int64_t bytes = plan->workspace_bytes();
  return make_kernel(
      [plan = std::move(plan), &device = cuda_context(request), p](const KernelContext& c) {
        plan->run(device, stream_of(c),
                  {.q = operand_at(c.inputs[0], p.q),
                   .k = operand_at(c.inputs[p.at.k], p.k),
                   .v = operand_at(c.inputs[p.at.v], p.v),
                   .y = c.outputs[AttentionOutput::Y],
                   .statistics = c.outputs[AttentionOutput::Statistics],
                   .bias = reads_bias(p) ? c.inputs[p.at.bias] : nullptr},
                  c.workspace);
      },
      bytes);
}

std::unique_ptr<Kernel> attention_by_rows(const KernelRequest& request, const AttentionProblem& p) {
  using Out = AttentionOutput;
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([e = attention_extents(p), at = p.at, stored = request.has_output(Out::Statistics),
                        processors = multiprocessors_of(request)](const KernelContext& c) {
      const int64_t rows = e.samples * e.heads * e.queries;
      if (rows == 0 || e.depth == 0) return;
      const T* bias = e.bias_samples > 0 ? input<T>(c, at.bias) : nullptr;
      attention_kernel<<<blocks_for(rows * 32, processors), kThreads, 0, stream_of(c)>>>(
          e, input<T>(c, 0), input<T>(c, at.k), input<T>(c, at.v), bias, output<T>(c, Out::Y),
          stored ? output<float>(c, Out::Statistics) : nullptr);
      check_launch("attention");
    });
  });
}

template <typename T>
void launch_grad_bias(const AttentionExtents& e, const AttentionPlaces& at, int processors, const KernelContext& c) {
  const int64_t scores = e.bias_samples * e.bias_heads * e.queries * e.keys;
  if (scores == 0) return;
  grad_bias_kernel<<<blocks_for(scores * 32, processors), kThreads, 0, stream_of(c)>>>(
      e, input<T>(c, 0), input<T>(c, at.k), input<T>(c, at.v), input<T>(c, at.y), input<float>(c, at.statistics),
      input<T>(c, at.dy), input<T>(c, at.bias), output<T>(c, at.dbias));
  check_launch("attention's gradient of biases");
}

template <typename T>
void launch_grad(const AttentionExtents& e, const AttentionPlaces& at, int processors, const KernelContext& c) {
  const T *q = input<T>(c, 0), *k = input<T>(c, at.k), *v = input<T>(c, at.v), *y = input<T>(c, at.y),
          *dy = input<T>(c, at.dy);
  const T* bias = e.bias_samples > 0 ? input<T>(c, at.bias) : nullptr;
  const int64_t heads = e.samples * e.heads;
  if (heads * e.depth == 0) return;
  if (e.queries > 0) {
    grad_queries_kernel<<<blocks_for(heads * e.queries * 32, processors), kThreads, 0, stream_of(c)>>>(
        e, q, k, v, y, input<float>(c, at.statistics), dy, bias, output<T>(c, 0));
    check_launch("attention's gradient of queries");
  }
  if (e.keys > 0) {
    grad_keys_kernel<<<blocks_for(heads * e.keys * 32, processors), kThreads, 0, stream_of(c)>>>(
        e, q, k, v, y, input<float>(c, at.statistics), dy, bias, output<T>(c, at.k), output<T>(c, at.v));
    check_launch("attention's gradient of keys");
  }
}

std::unique_ptr<Kernel> gradients_of_few(const KernelRequest& request, const AttentionProblem& p) {
  return takes_short_attention(request, p) ? short_attention_grad(request, p) : nullptr;
}

std::unique_ptr<Kernel> gradients_by_cudnn(const KernelRequest& request, const AttentionProblem& p) {
  const GradPlan found = grad_plan_for(request, p);
  if (!found.plan) return nullptr;
  const bool own_of_bias = request.has_output(p.at.dbias) && !found.of_bias;
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel(
        [e = attention_extents(p), p, own_of_bias, found, &device = cuda_context(request)](const KernelContext& c) {
          found.plan->run(device, stream_of(c),
                          {.q = operand_at(c.inputs[0], p.q),
                           .k = operand_at(c.inputs[p.at.k], p.k),
                           .v = operand_at(c.inputs[p.at.v], p.v),
                           .y = const_cast<void*>(c.inputs[p.at.y]),
                           .statistics = const_cast<void*>(c.inputs[p.at.statistics]),
                           .dy = c.inputs[p.at.dy],
                           .dq = operand_at(c.outputs[0], p.q),
                           .dk = operand_at(c.outputs[p.at.k], p.k),
                           .dv = operand_at(c.outputs[p.at.v], p.v),
                           .bias = reads_bias(p) ? c.inputs[p.at.bias] : nullptr,
                           .dbias = found.of_bias ? c.outputs[p.at.dbias] : nullptr},
                          c.workspace);
          if (own_of_bias) launch_grad_bias<T>(e, p.at, device.multiprocessors, c);
        },
        found.plan->workspace_bytes());
  });
}

std::unique_ptr<Kernel> gradients_by_rows(const KernelRequest& request, const AttentionProblem& p) {
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([e = attention_extents(p), at = p.at, processors = multiprocessors_of(request),
                        of_bias = request.has_output(p.at.dbias)](const KernelContext& c) {
      launch_grad<T>(e, at, processors, c);
      if (of_bias) launch_grad_bias<T>(e, at, processors, c);
    });
  });
}

constexpr KernelEngine<AttentionProblem> kAttentionEngines[] = {
    {"few rows", attention_of_few},
    {"cuDNN", attention_by_cudnn},
    {"row by row", attention_by_rows},
};
constexpr KernelEngine<AttentionProblem> kAttentionGradEngines[] = {
    {"few rows", gradients_of_few},
    {"cuDNN", gradients_by_cudnn},
    {"row by row", gradients_by_rows},
};

template <bool gradient>
std::unique_ptr<Kernel> attention_cuda(const KernelRequest& request) {
  return first_kernel(gradient ? kAttentionGradEngines : kAttentionEngines, request,
                      checked_problem(request, gradient));
}

}  // namespace

void register_product_attention_cuda(OpRegistry& registry) {
  for (const char* form : {"arbalest.Attention", "arbalest.PackedAttention"}) {
    registry.find(form)->cuda = attention_cuda<false>;
    registry.find(std::string(form) + "Grad")->cuda = attention_cuda<true>;
  }
}

}  // namespace arbalest
