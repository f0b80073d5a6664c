// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which values of a model's file are trained. Exporters leave that open: they share equal initialisers, store weights
// in Constant nodes, and state batch norms as inference runs them. And what older opsets mean by an operator.

#include "graph/file/graph_source.h"
#include "graph/graph.h"

namespace arbalest {

// Enters the producer, and whether an initialiser that several nodes read is one parameter. PyTorch's exporters state
// each, or copy by an Identity what is equal by chance, unless the graph was optimised afterwards. That leaves no
// Constant node, nor a name with a slash in front, as the older exporter writes. And that exporter gives no names but
// those of parameters and buffers, and made-up ones.
void note_producer(GraphSource& source, const std::string& producer);

// PyTorch's parameters and buffers are called by their module and a dot, if they are not the outermost module's: no
// such initialiser is a number of a formula.
bool is_of_module(const GraphSource& source, const std::string& name);

// `graph` was built of `source`. Initialisers that the file calls buffers are frozen, and those that it calls constants
// constant. Weights in Constant nodes become parameters, unless the producer writes initialisers for
// them. Single numbers become constant that are neither an operator's weight nor a module's parameter, nor called one.
// So do values of which shapes, axes or bounds are computed, the ones and zeros of norms without scale and bias, and
// tensors that are no weights and not finite, or 0 and one large negative number alone, such as masks.
// Initialisers that are equal by chance, which exporters store once, become as many parameters as there were. These are
// initialisers that an Identity copies, and those with one number throughout that several nodes read, unless the nodes
// are known to share them. A transposed copy of an embedding's table that PyTorch's exporters have folded is a
// Transpose of the table. Zeros before the first step of a recurrent layer are left out. If the original name is lost,
// or counted up by the exporter ("const_fold_opt__4859"), it is made of the node's weight, or else of the node that
// reads it.
void own_parameters(Graph& graph, const GraphSource& source);

// Batch norms and dropouts in training: as in training, or, if `training` is false, as in validation. A batch norm
// that trains has statistics of its own; those of PyTorch's files keep the unbiased variance, as PyTorch does.
void follow_training(Graph& graph, const GraphSource& source, bool training);

// Before ONNX's opset 13 the sums of Softmax and LogSoftmax were over all axes from `axis` on, which was 1 unless
// given. The graph that a model becomes part of is of another opset: in graphs of older ones they become the newer
// operators between reshapes that make one axis of those.
void spell_out_old_softmax(Graph& graph);

}  // namespace arbalest
