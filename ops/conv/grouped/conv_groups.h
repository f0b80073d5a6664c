// SPDX-License-Identifier: Apache-2.0
#pragma once
// Joined groups: a convolution of many groups as one of fewer, whose filters have zeros where groups do not meet.
// Engines for groups use little of the matrix units, so more products in a better engine take less time.

#include <cuda_runtime.h>

#include <vector>

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

struct JoinedGroups {
  int by = 1;                               // groups that become one; 1: nothing is joined
  int channels = 0, filters = 0, taps = 0;  // of a group's filter; of a group; positions of a filter
  int all_filters = 0;
};

// Numbers of groups that are worth a trial, by how wide the joined ones are. Empty: the problem has one group.
std::vector<int> ways_to_join(const ConvolutionProblem& problem);
// Joins `by` groups each. `problem` becomes the joined one.
JoinedGroups join_groups(ConvolutionProblem& problem, int by);

// Filters (K,R,S,C/g) of `type`, Float32 or Bfloat16, become (K,R,S,by · C/g).
void join_filter(cudaStream_t stream, int multiprocessors, const JoinedGroups& joined, DataType type, const void* from,
                 void* to);
// A filter's gradient the other way, of two types.
void part_filter(cudaStream_t stream, int multiprocessors, const JoinedGroups& joined, DataType from_type,
                 const void* from, DataType to_type, void* to);

}  // namespace arbalest
