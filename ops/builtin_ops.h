// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operators of the library, and how a program adds its own.

#include "graph/op.h"

namespace arbalest {

// The operators of this build, which ops/meson.build lists, and those that register_operator() has added.
const OpRegistry& builtin_ops();

// Adds an operator of the program's own: graph files, the DSL, passes and plans know it from then on. Call it before a
// graph that uses it is read; from any thread. Throws GraphError if the name is taken or as check_record() does. An
// optimiser (Op::optimizer) adds attributes to arbalest.Train, so no graph may be in use in other threads then.
// check_operator() in ops/check/check_operator.h takes the operator through its samples.
void register_operator(Op op);

}  // namespace arbalest
