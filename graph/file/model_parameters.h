#pragma once
// Which values of a model's file are trained. Exporters leave that open: they share equal initialisers, store weights
// in Constant nodes, and state batch norms as inference runs them.

#include "graph/graph.h"

namespace arbalest {

// Weights in Constant nodes become parameters; a single number that no operator has as a weight, and what shapes, axes
// or bounds are computed of, becomes constant. Initialisers that are equal by chance, which exporters store once,
// become as many parameters as there were: those that an Identity copies, and those with one number throughout that
// several nodes read. Where the original name is lost, it is made of the weight beside it.
void own_parameters(Graph& graph);

// Batch norms and Dropout in training: as in training, or, where `training` is false, as in validation. A batch norm
// that trains has statistics of its own.
void follow_training(Graph& graph, bool training);

}  // namespace arbalest
