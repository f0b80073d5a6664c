// SPDX-License-Identifier: Apache-2.0

// Attention on CPUs, in plain loops: the reference for the kernels for GPUs, which are the fast ones.

#include <cmath>
#include <vector>

#include "ops/cpu.h"
#include "ops/product/attention.h"

namespace arbalest {
namespace {

template <typename W, typename T>
W row_dot(int64_t count, const T* a, const T* b) {
  W sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += widen(a[i]) * widen(b[i]);
  return sum;
}

// f(the sample, the head) for all of them, on threads.
template <typename F>
void for_each_head(const AttentionProblem& p, const F& f) {
  parallel_for(p.samples * p.heads, p.queries * p.keys * p.depth * 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / p.heads, i % p.heads);
  });
}

int64_t first_of(const HeadSteps& steps, int64_t sample, int64_t head) {
  return steps.first + sample * steps.sample + head * steps.head;
}

template <typename T>
std::unique_ptr<Kernel> attention_of(const KernelRequest& request) {
  using W = Wide<T>;
  return make_kernel(
      [p = AttentionProblem(request, false), stored = request.has_output(1)](const KernelContext& context) {
        for_each_head(p, [&](int64_t sample, int64_t head) {
          const T* q = input<T>(context, 0) + first_of(p.q, sample, head);
          const T* k = input<T>(context, p.at.k) + first_of(p.k, sample, head);
          const T* v = input<T>(context, p.at.v) + first_of(p.v, sample, head);
          const T* added = p.biased() ? input<T>(context, p.at.bias) + first_of(p.bias, sample, head) : nullptr;
          T* y = output<T>(context, 0) + first_of(p.y, sample, head);
          std::vector<W> weights(size_t(p.keys)), sums(size_t(p.depth));
          for (int64_t row = 0; row < p.queries; ++row) {
            W largest = -INFINITY, total = 0;
            for (int64_t key = 0; key < p.keys; ++key) {
              weights[size_t(key)] = W(p.scale) * row_dot<W>(p.depth, q + row * p.q.row, k + key * p.k.row);
              if (added) weights[size_t(key)] += widen(added[row * p.bias.row + key]);
              largest = std::max(largest, weights[size_t(key)]);
            }
            std::fill(sums.begin(), sums.end(), W(0));
            for (int64_t key = 0; key < p.keys; ++key) {
              const W weight = std::exp(weights[size_t(key)] - largest);
              total += weight;
              for (int64_t i = 0; i < p.depth; ++i) sums[size_t(i)] += weight * widen(v[key * p.v.row + i]);
            }
            for (int64_t i = 0; i < p.depth; ++i) y[row * p.y.row + i] = narrow<T>(sums[size_t(i)] / total);
            if (stored) output<W>(context, 1)[(sample * p.heads + head) * p.queries + row] = largest + std::log(total);
          }
        });
      });
}

// Gradient of the bias: that of the scores, summed over the samples and heads that share the bias. One thread computes
// a whole row, so that sums are the same for any number of threads.
template <typename T>
void grad_bias(const AttentionProblem& p, const KernelContext& context) {
  using W = Wide<T>;
  const int64_t rows = p.bias_samples * p.bias_heads * p.queries;
  parallel_for(rows, p.keys * p.depth * 4, [&](int64_t begin, int64_t end) {
    std::vector<W> sums(size_t(p.keys));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % p.queries, first = i / p.queries;  // its sample and head, counted together
      const T* added = input<T>(context, p.at.bias) + i * p.keys;
      std::fill(sums.begin(), sums.end(), W(0));
      for (int64_t each = 0; each < p.samples * p.heads; ++each) {
        const int64_t sample = each / p.heads, head = each % p.heads;
        const int64_t own = (p.bias_samples == 1 ? 0 : sample) * p.bias_heads + (p.bias_heads == 1 ? 0 : head);
        if (own != first) continue;
        const T *q = input<T>(context, 0) + first_of(p.q, sample, head) + row * p.q.row,
                *k = input<T>(context, p.at.k) + first_of(p.k, sample, head),
                *v = input<T>(context, p.at.v) + first_of(p.v, sample, head);
        const int64_t at = first_of(p.y, sample, head) + row * p.y.row;
        const T *y = input<T>(context, p.at.y) + at, *dy = input<T>(context, p.at.dy) + at;
        const W sum = input<W>(context, p.at.statistics)[each * p.queries + row], mean = row_dot<W>(p.depth, dy, y);
        for (int64_t key = 0; key < p.keys; ++key) {
          const W score = W(p.scale) * row_dot<W>(p.depth, q, k + key * p.k.row) + widen(added[key]);
          sums[size_t(key)] += std::exp(score - sum) * (row_dot<W>(p.depth, dy, v + key * p.v.row) - mean);
        }
      }
      for (int64_t key = 0; key < p.keys; ++key)
        output<T>(context, p.at.dbias)[i * p.keys + key] = narrow<T>(sums[size_t(key)]);
    }
  });
}

template <typename T>
std::unique_ptr<Kernel> attention_grad_of(const KernelRequest& request) {
  using W = Wide<T>;
  const AttentionProblem problem(request, true);
  return make_kernel([p = problem, adds = request.has_output(problem.at.dbias)](const KernelContext& context) {
    if (adds) grad_bias<T>(p, context);
    for_each_head(p, [&](int64_t sample, int64_t head) {
      const int64_t q_first = first_of(p.q, sample, head), k_first = first_of(p.k, sample, head),
                    v_first = first_of(p.v, sample, head), y_first = first_of(p.y, sample, head);
      const T *q = input<T>(context, 0) + q_first, *k = input<T>(context, p.at.k) + k_first,
              *v = input<T>(context, p.at.v) + v_first, *y = input<T>(context, p.at.y) + y_first,
              *dy = input<T>(context, p.at.dy) + y_first;
      const W* statistics = input<W>(context, p.at.statistics) + (sample * p.heads + head) * p.queries;
      const T* added = p.biased() ? input<T>(context, p.at.bias) + first_of(p.bias, sample, head) : nullptr;
      std::vector<W> dq(size_t(p.depth)), dk(size_t(p.keys * p.depth)), dv(dk.size());
      for (int64_t row = 0; row < p.queries; ++row) {
        const W mean = row_dot<W>(p.depth, dy + row * p.y.row, y + row * p.y.row);
        std::fill(dq.begin(), dq.end(), W(0));
        for (int64_t key = 0; key < p.keys; ++key) {
          const T *query = q + row * p.q.row, *keyed = k + key * p.k.row;
          const W bias = added ? W(widen(added[row * p.bias.row + key])) : W(0);
          const W weight = std::exp(W(p.scale) * row_dot<W>(p.depth, query, keyed) + bias - statistics[row]);
          const W slope =
              weight * (row_dot<W>(p.depth, dy + row * p.y.row, v + key * p.v.row) - mean) * static_cast<W>(p.scale);
          for (int64_t i = 0; i < p.depth; ++i) {
            dq[size_t(i)] += slope * widen(keyed[i]);
            dk[size_t(key * p.depth + i)] += slope * widen(query[i]);
            dv[size_t(key * p.depth + i)] += weight * widen(dy[row * p.y.row + i]);
          }
        }
        T* to = output<T>(context, 0) + q_first + row * p.q.row;
        for (int64_t i = 0; i < p.depth; ++i) to[i] = narrow<T>(dq[size_t(i)]);
      }
      for (int64_t key = 0; key < p.keys; ++key) {
        T *to_k = output<T>(context, p.at.k) + k_first + key * p.k.row,
          *to_v = output<T>(context, p.at.v) + v_first + key * p.v.row;
        for (int64_t i = 0; i < p.depth; ++i) {
          to_k[i] = narrow<T>(dk[size_t(key * p.depth + i)]);
          to_v[i] = narrow<T>(dv[size_t(key * p.depth + i)]);
        }
      }
    });
  });
}

}  // namespace

std::unique_ptr<Kernel> attention_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype,
                           [&](auto element) { return attention_of<decltype(element)>(request); });
}

std::unique_ptr<Kernel> attention_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype,
                           [&](auto element) { return attention_grad_of<decltype(element)>(request); });
}

}  // namespace arbalest
