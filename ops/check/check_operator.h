#pragma once
// What operators are tested with, those of this library and those that programs add with register_operator().

#include <string>
#include <vector>

#include "graph/op.h"

namespace arbalest {

// Takes the operator through each of its samples (Op::samples), by their tolerances, and returns what is wrong, in a
// sentence each that names the sample; nothing where nothing is. It need not be registered. What is checked:
//   - the record: check_record() of graph/op.h, and that there are samples where there is a kernel;
//   - the CPU kernel in float, and in bfloat16 where operands follow the compute precision, against itself in double;
//   - the gradient against finite differences, in double;
//   - where machine and build have CUDA, the CUDA kernel against the CPU's in double: fp32, tf32, bfloat16, replayed;
//   - on every device, that no kernel writes outside its outputs and its workspace.
std::vector<std::string> check_operator(const Op& op);

}  // namespace arbalest
