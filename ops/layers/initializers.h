// SPDX-License-Identifier: Apache-2.0
#pragma once
// Initial values of the parameters of layers, as their attribute `init` says.

#include "graph/op.h"

namespace arbalest {

// Numbers of inputs that an element of the output depends on, and of outputs that depend on an element of the input.
struct Fans {
  double in, out;
};

Initializer constant_initializer(double value);
Initializer normal_initializer(double deviation);

// Initializer of the weight that the layer `node` owns. Throws GraphError if `init` is unknown.
Initializer weight_initializer(const Node& node, Fans fans);
// Initializer of the bias of the same layer.
Initializer bias_initializer(const Node& node, Fans fans);

// The attribute `init`.
AttributeSpec init_spec(const char* fallback);

}  // namespace arbalest
