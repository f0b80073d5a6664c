// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/grouped/conv_groups.h"

#include <algorithm>

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads) join_filter_kernel(JoinedGroups g, const T* from, T* to) {
  const int wide = g.by * g.channels;
  const int64_t count = int64_t(g.all_filters) * g.taps * wide;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int channel = int(i % wide);
    const int64_t row = i / wide;
    const int group = int(row / g.taps / g.filters) % g.by;
    to[i] = channel / g.channels == group ? from[row * g.channels + channel % g.channels] : narrow<T>(0.0f);
  }
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) part_filter_kernel(JoinedGroups g, const From* from, To* to) {
  const int64_t count = int64_t(g.all_filters) * g.taps * g.channels;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int64_t row = i / g.channels;
    const int group = int(row / g.taps / g.filters) % g.by;
    to[i] = narrow<To>(widen(from[(row * g.by + group) * g.channels + i % g.channels]));
  }
}

int64_t filter_elements(const JoinedGroups& g) {
  return int64_t(g.all_filters) * g.taps * g.channels;
}

}  // namespace

std::vector<int> ways_to_join(const ConvolutionProblem& problem) {
  constexpr int64_t kMost = 64;  // times as many products
  const int64_t width = problem.w[1], groups = problem.x[1] / problem.w[1];
  std::vector<int> ways;
  for (const int64_t wanted : {int64_t{64}, int64_t{128}, problem.x[1]}) {
    for (int64_t by = 2; by <= std::min(groups, kMost); ++by) {
      if (groups % by != 0 || (by * width < wanted && by != groups)) continue;
      if (std::find(ways.begin(), ways.end(), int(by)) == ways.end()) ways.push_back(int(by));
      break;
    }
  }
  return ways;
}

JoinedGroups join_groups(ConvolutionProblem& problem, int by) {
  const int64_t groups = problem.x[1] / problem.w[1];
  const JoinedGroups joined{.by = by,
                            .channels = int(problem.w[1]),
                            .filters = int(problem.w[0] / groups),
                            .taps = int(element_count({problem.w.begin() + 2, problem.w.end()})),
                            .all_filters = int(problem.w[0])};
  problem.w[1] *= by;
  return joined;
}

void join_filter(cudaStream_t stream, int multiprocessors, const JoinedGroups& joined, DataType type, const void* from,
                 void* to) {
  with_stored(type, [&](auto element) {
    using T = decltype(element);
    join_filter_kernel<<<blocks_for(filter_elements(joined) * joined.by, multiprocessors), kThreads, 0, stream>>>(
        joined, static_cast<const T*>(from), static_cast<T*>(to));
  });
  check_launch("conv groups");
}

void part_filter(cudaStream_t stream, int multiprocessors, const JoinedGroups& joined, DataType from_type,
                 const void* from, DataType to_type, void* to) {
  with_stored(from_type, [&](auto source) {
    with_stored(to_type, [&](auto target) {
      part_filter_kernel<<<blocks_for(filter_elements(joined), multiprocessors), kThreads, 0, stream>>>(
          joined, static_cast<const decltype(source)*>(from), static_cast<decltype(target)*>(to));
    });
  });
  check_launch("conv groups");
}

}  // namespace arbalest
