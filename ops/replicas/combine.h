// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers of operators over the arrays of several replicas: Combine, AllReduce and MergeStatistics.

#include <string_view>
#include <vector>

#include "ops/definition.h"

namespace arbalest {

// Arrays of one kind that an operator takes at most: a CUDA kernel has their addresses in its parameters.
inline constexpr size_t kMaxReplicaArrays = 256;

// Fails if there are more than kMaxReplicaArrays; `what` names them: "inputs".
void check_array_count(const InferContext& context, size_t count, std::string_view what);

// Input 0, which must be float or double; fails unless all inputs are of its type.
const TensorType& replica_input(const InferContext& context);

// On the CPU: y = Σ coefficients[i] · inputs[i] of `count` elements, summed in input order, to each of `outputs`
// outputs, of which the last `lowered` are bfloat16. Outputs may be the memory of inputs. T: float or double.
template <typename T>
void combine(const KernelContext& context, int64_t count, const std::vector<T>& coefficients, size_t outputs,
             size_t lowered);

}  // namespace arbalest
