// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tests of operators: those of this library and those that programs add with register_operator().

#include <string>
#include <vector>

#include "graph/op.h"

namespace arbalest {

// Runs the operator through each of its samples (Op::samples), within their tolerances. Returns the faults found, one
// sentence each that names the sample; none if all is well. The operator need not be registered. The checks cover:
//   - the record: check_record() of graph/op.h, and that there are samples if there is a kernel;
//   - the CPU kernel in float, and in bfloat16 if operands follow the compute precision, against itself in double;
//   - the gradient against finite differences, in double;
//   - if machine and build have CUDA, the CUDA kernel against the CPU's in double: fp32, tf32, bfloat16, replayed;
//   - on every device, that no kernel writes outside its outputs and its workspace.
std::vector<std::string> check_operator(const Op& op);

}  // namespace arbalest
