#pragma once
// How the parameters of layers start, as their attribute `init` says.

#include "graph/op.h"

namespace arbalest {

// Inputs and outputs that an element of the output, or of the input, depends on.
struct Fans {
  double in, out;
};

Initializer constant_initializer(double value);
Initializer normal_initializer(double deviation);

// Of the weight that the layer `node` owns. Throws GraphError for what `init` does not know.
Initializer weight_initializer(const Node& node, Fans fans);
// Of the bias beside it.
Initializer bias_initializer(const Node& node, Fans fans);

// The attribute `init`.
AttributeSpec init_spec(const char* fallback);

}  // namespace arbalest
