// SPDX-License-Identifier: Apache-2.0
#pragma once
// The passes from a verified graph, as a file or the DSL gives it, to the graphs that a plan is made of. One file a
// pass, those that fuse nodes in passes/fuse; the table in passes/pipeline.cpp has their order.

#include <string>
#include <vector>

#include "base/device_model.h"
#include "graph/graph.h"
#include "graph/metric.h"
#include "ops/names.h"

namespace arbalest {

// Layers that own parameters become operators with explicit parameters, until none is left; so do, unless `standard` is
// false, operators of ONNX's that stand for simpler ones.
void expand_layers(Graph& graph, bool standard = true);

// Whether the node is a batch norm of one tensor, in training or by running statistics: BatchNormInput has its inputs.
bool is_batch_norm(const Node& node);

// Whether the node makes no data but a token: Train, Synchronize, Validate.
bool is_rule(const Graph& graph, const Node& node);

// Dropouts that exporters spell out with RandomUniformLike, RandomUniform or Bernoulli become operators. These are
// Dropout if each element is drawn for itself, and arbalest.StochasticDepth if each sample is. Others, of channels or
// of the whole batch, become Dropout of ones, by which the tensor is multiplied. Draws of `training_mode` 0 drop
// nothing.
void find_dropouts(Graph& graph);

// Logarithms of Sigmoid, of 1 − Sigmoid and of Softmax become functions of the logits, which are finite where the
// probability is 0.
void fuse_logarithms(Graph& graph);

// Norms of rows that are spelled out, with or without a mean taken off, a scale and a bias, become LayerNormalization,
// arbalest.Normalize or RMSNormalization, which keep their numbers in float whatever the precision.
void fuse_norms(Graph& graph);

// A batch norm followed by Relu, or by Add and Relu, becomes one node with them.
void fuse_batch_norm(Graph& graph);

// A Conv followed by Relu becomes one node with it, whose gradient masks the incoming gradient and sums it for the bias
// in one pass.
void fuse_relu(Graph& graph);

// Samples that are normalised as rows, and then have their own shape again, keep it. So images keep their layout. Batch
// norms of weights by their own statistics (weight standardisation) normalise rows.
void fuse_samples(Graph& graph);

// A channel shuffle as exporters write it, Reshape, Transpose and Reshape, becomes one arbalest.Interleave, which keeps
// the layout of images.
void fuse_shuffles(Graph& graph);

// softmax(scale · Q Kᵀ) V, made of two MatMuls, a Softmax between them and constant factors, becomes one
// arbalest.Attention. It reads and writes heads where they lie, without the Transposes around it. Rows without an axis
// of heads have one. Keys that are columns, and values that are, are turned if their heads are of an engine's depth.
// `lowered`: the program computes in bfloat16, for which engines take heads of more depths. If Q, K and V are parts of
// the rows of one tensor that nothing else reads, arbalest.PackedAttention reads that tensor instead.
void fuse_attention(Graph& graph, bool lowered);

// If operators that treat all pixels alike read an image whose pixels a Reshape has made one axis, they read the image
// instead, and the Reshape comes after them. If a Reshape makes an image of their result, they make that image.
void merge_pixels_late(Graph& graph);

// Gather of a constant index, or of several equally far from each other, becomes a Slice. A Transpose that keeps the
// order of its elements becomes a Reshape. Operators by element read what an Expand repeats for them. What reads a node
// that gives its input back, such as Pad by nothing or Slice of everything, reads that input. Values `asked` for by
// their names stay, here and below.
void simplify_moves(Graph& graph, const std::vector<ValueId>& asked);

// A product reads an operand whose matrices were transposed as it was before. Of two Transposes of rows with nodes
// between them that treat all rows alike, such as a product with a weight, one is left, or none. What the nodes between
// make has its rows in another order then. A product reads and makes pixels (N,C,L) of channels-last images as these
// lie.
void fuse_transposes(Graph& graph, const std::vector<ValueId>& asked);

// Transposes and changes of layout with nothing but reshapes between them become one Transpose, or none.
void fuse_rearrangements(Graph& graph, const std::vector<ValueId>& asked);

// A product of rows and one matrix becomes a Gemm with the bias that is added to its rows.
void fuse_biases(Graph& graph, const std::vector<ValueId>& asked);

// Chains of Slice, Concat, Split, gradients of Slice, and sums of these whose places do not overlap, become one
// arbalest.Assemble each, which copies every element once.
void fuse_moves(Graph& graph, const std::vector<ValueId>& asked);

// If `loss` comes from a SoftmaxCrossEntropy and the graph has the top-class Accuracy of the same logits, the loss's
// kernel computes that accuracy too, without a kernel of its own. Returns the accuracy; kNone if none of `among` is
// one, or if a node reads it.
ValueId fuse_accuracy(Graph& graph, ValueId loss, const std::vector<ValueId>& among);

// Lets batch norms read the inputs of a Concat along the channels directly, with statistics of each part that are
// computed once for all batch norms over it. Removes a Concat if only such batch norms or Concats read it.
void fuse_concats(Graph& graph);

// Removes Adds of gradients. If only a BatchNormGrad reads the sum, it adds the two as it reads them. If one of the two
// is a BatchNormPartsGrad's gradient of a part, that node adds it to the other gradient, in the other's memory.
void fuse_gradient_sums(Graph& graph);

// The gradient of a matrix that many Gemms read is one product of all their rows, if that moves fewer bytes than the
// sum of their gradients does.
void fuse_weight_gradients(Graph& graph);

// A MaxPool of images with a gradient keeps the positions of its windows' maxima, one byte each. The gradient reads
// these instead of the images before and after the pool. The gradient of a Relu before the pool is applied first,
// window by window, so that the image before the pool can be freed.
void keep_maxima(Graph& graph);

// Fuses statistics of batch norms into convolutions of few channels, pointwise convolutions and the stem. If a batch
// norm reads the convolution, the convolution also makes its partial statistics. If the convolution reads a batch norm,
// the convolution's gradient also makes partial sums for the batch norm's gradient. Each saves a pass over images. Only
// those that the device has kernels for are fused.
void fuse_statistics(Graph& graph, const DeviceModel& device, int learners);

// Two batch norms whose sum goes through Relu, as in a block that projects its input, become one node, and so do their
// gradients. Each saves passes over images.
void fuse_batch_norm_pairs(Graph& graph);

// Sums of a product of matrices and a tensor of its shape become one product that adds the tensor.
void fuse_residuals(Graph& graph);

// Norms of groups of channels become what kernels compute: sums of each channel and elementwise operators, if kernels
// are generated for regions and channels lie innermost, otherwise norms of rows.
void open_group_norms(Graph& graph, bool generated);

// Batch norms next to elementwise operators become elementwise operators themselves, apart from their statistics and
// sums, so that fuse_regions joins them. Those with Relu do if nothing then has to store what Relu makes.
void open_batch_norms(Graph& graph);

// Sums of all elements that a region makes or reads are sums over rows, which regions end in, and sums of those.
void split_whole_sums(Graph& graph);

// Nodes of the forward pass that are made of weights alone come some nodes earlier, so that they can run aside.
void advance_weights(Graph& graph);

// Gradients of Relu read, of what Relu makes, a positive multiple that is kept in any case.
void read_kept_signs(Graph& graph);

// Parts of what elementwise operators make, if nothing else of it is read, are made of parts of what these read.
// fuse_regions and fuse_region_moves then read and write no more than parts.
void compute_parts(Graph& graph);

// Parameters and statistics that `train` (a Train node) says are frozen get Role::Frozen, and so do the statistics of
// batch norms that run by them. A batch norm whose scale and bias are frozen, or whose statistics are, runs by its
// running statistics from now on.
void freeze(Graph& graph, const Node& train);

// Every value gets the memory layout that the operators around it want (Op::layout). Parameters, states and constants
// are laid out as their first reader wants them. If a value is wanted in two layouts, or made in another than wanted,
// an arbalest.ChangeLayout node is inserted.
void place_layouts(Graph& graph);

// Values that are known before the graph runs become constants, and the content of constant operands
// (OperandSpec::constant) goes to the attributes of the same names. Runs after the validation slice has been taken,
// whose batch may be another.
void fold_constants(Graph& graph);

// The slice that computes `metrics` with the given split and batch: data without randomness, batch norm on running
// statistics. `prefetch` is the node that reads the data.
Graph slice_validation(const Graph& graph, const std::vector<ValueId>& metrics, const std::string& split,
                       int64_t batch);

// The divisor of the mean `value` of a batch, a scalar of the graph, if that is not the number of its valid samples;
// otherwise kNone. The divisor is an output of the same node, which the operator declares under the same name with
// "_weight" appended; the node is made to compute it. A sum or a multiple of means has their weight if all have the
// same one, apart from terms that depend on no sample; another shape of one has it, too.
ValueId weight_of(Graph& graph, ValueId value);

// False if the scalar is made of means, but not in a linear way or not of the same samples: exp(loss). Its mean over
// batches is not what it is over all their samples.
bool is_mean(Graph& graph, ValueId value);

// True if the mean times its weight is a whole number: a share of samples (MetricSpec::counts), or sums, differences
// and whole multiples of such.
bool counts_samples(const Graph& graph, ValueId value);

// True if both are one value, or copies of one that are made in the same way, by nodes of one input each: a label that
// a loss and a metric have each cast for themselves.
bool computes_the_same(const Graph& graph, ValueId a, ValueId b);

// True if the rows that pad a batch have a part in the value: an operator without a metric's record, which does not
// know how many samples are valid, makes it of the batch.
bool reads_padding(const Graph& graph, ValueId value);

// A scalar that a tally sums. `weight`, as weight_of() returns it; kNone: the valid samples.
struct TalliedMean {
  ValueId value = kNone, weight = kNone;
};

// A scalar as a function of means, which a validation sums: √(mean of squares). The function's graph has an input, a
// constant without content, for each mean, and one output. It has no nodes if the scalar is itself a mean, or if
// the content of another input is unknown.
struct MeasuredMeans {
  std::vector<TalliedMean> means;
  Graph function;
  std::vector<ValueId> inputs;  // of the function, by mean
  bool of_batches = false;      // what is summed is no mean over samples: it is computed of each batch
};
MeasuredMeans measured_means(Graph& graph, ValueId value);

// Sums `metrics` times their weights into a State named "tally": double[1 + metrics + weights]. First comes Σ valid,
// then the sums of the metrics, then those of the weights that they have of their own, both in the metrics' order. With
// a `factor` (ArenaValues::factor) batches whose first metric is not finite are left out, and two more sums follow:
// updates that were due, and those that were skipped. Returns that state.
ValueId add_tally(Graph& graph, const std::vector<TalliedMean>& metrics, ValueId factor = kNone);

// Keeps `rows`, float[batch, columns], of up to `batches` batches in a State named "NAME.rows". A device has every
// `devices`-th batch of an epoch. Returns that state.
ValueId add_rows(Graph& graph, ValueId rows, int64_t batches, int64_t devices);

// The metric that a value of the graph is: as the operator that makes it declares, otherwise a mean.
MetricSpec metric_of(const Graph& graph, ValueId value);

// The direction in which a metric is better: lower for `loss`, which Train minimises; for others as the operator that
// makes it declares. An operator that passes on or adds up metrics has their direction, if they agree. None: nothing
// states it.
std::optional<MetricSpec::Better> better_of(const Graph& graph, ValueId value, ValueId loss);

// The flat values that parameters, gradients and optimiser state live in; kNone if there is none.
struct ArenaValues {
  struct Slot {
    std::string name;  // as OptimizerSpec::slots has it
    ValueId value = kNone;
  };
  ValueId weights = kNone;          // float[P]
  ValueId gradients = kNone;        // float[P], or with the batch's weight after them (UpdateOptions::sums)
  std::vector<Slot> slots;          // float[P] each: the optimiser's, in its order
  ValueId statistics = kNone;       // float[S]: running means, then the variances in the same order
  ValueId weights_lowered = kNone;  // bfloat16[P]: the weights that bf16 kernels read
  ValueId frozen = kNone;           // float[F]: values that never change, the same for all replicas of a device
  ValueId frozen_lowered = kNone;   // bfloat16[F]
  // float[P]: the model of all learners before its last averaging, and after, which only restarts read.
  ValueId average = kNone, averaged = kNone;
  ValueId tally = kNone;   // double[1 + metrics + weights], or 2 more (add_tally)
  ValueId factor = kNone;  // float[1]: of gradients, below 0 for no update; only if updates may be skipped

  std::vector<ValueId*> all() {
    std::vector<ValueId*> all = {&weights,        &gradients, &statistics, &weights_lowered, &frozen,
                                 &frozen_lowered, &average,   &averaged,   &tally,           &factor};
    for (Slot& slot : slots) all.push_back(&slot.value);
    return all;
  }
};

// Parameters, running statistics and what is frozen become views of flat arenas; there is no backward and no update.
ArenaValues add_weight_arenas(Graph& graph);

struct UpdateOptions {
  bool averaging = false;  // the update corrects towards an average that others compute
  bool restarts = false;   // and may start again from it
  int64_t accumulate = 1;  // batches whose gradients make one update
  bool sums = false;       // gradients of several learners are averaged before an update
  bool skips = false;      // an update whose loss or gradients are not finite leaves everything as it is
};

// Appends backward and the update of every parameter from `loss` as `train` (a Train node) says. Parameters and
// gradients become views of flat arenas, in the order in which backward finishes. If an update is made of several
// batches that need not weigh the same (weight_of()), gradients are multiplied by their batch's weight. The weight
// follows them in the arena, so that it is summed with them; the update divides by the sum.
ArenaValues add_update(Graph& graph, ValueId loss, const Node& train, const UpdateOptions& options);

// If updates may be skipped: restores the running statistics from before the batches of an update that is skipped.
void keep_statistics(Graph& step, const ArenaValues& arenas);

// Turns a step with its update into one that leaves the weights as they are. Then `arenas.statistics` becomes the mean,
// over `batches` batches, of each batch's mean and variance, as its batch norm takes that. StepScalars::accumulated
// counts the batches.
void average_statistics(Graph& step, ArenaValues& arenas, int64_t batches);

// Puts the parameters and statistics of a graph without updates into flat arenas with the offsets they have in
// `training`.
ArenaValues adopt_arenas(Graph& graph, const Graph& training, const ArenaValues& arenas);

// bf16 compute: activations and the weights that matrix units read become bfloat16; statistics, losses, parameter
// gradients and master weights stay float.
void lower_precision(Graph& graph, ArenaValues& arenas);

// Elementwise operators of one shape that hand results to each other become nodes of arbalest.Region. Results that only
// the backward pass reads are computed again there where that moves fewer bytes. `aside`: small gradients of parameters
// that run next to what follows them stay nodes of their own (ProgramOptions::aside).
void fuse_regions(Graph& graph, bool aside);

// Regions, and elementwise operators that become regions, read what slices, splits and transpositions make where these
// would copy it from, and write what a concatenation joins where it would copy it to.
void fuse_region_moves(Graph& graph);

// Whether the node, which updates the parameters, works element by element: parts of the arenas can then be updated as
// soon as their gradients are there. Norms of all gradients, rates by norms, sums of several batches and averages need
// all of them.
bool updates_in_parts(const Node& update, const ArenaValues& arenas);

// Moves nodes that make large parameter gradients to later positions in the backward pass, at which activations have
// left room for them. Otherwise 400 MB of VGG-16's gradients would be made when most activations are alive. Leaves the
// graph as it is if its update is not made in parts.
void delay_gradients(Graph& graph, const ArenaValues& arenas);
inline constexpr int64_t kLargeGradient = 32 << 20;  // bytes

// Drops nodes that nothing asked for needs, and values nobody uses. Renumbers both; `keep` is updated along.
void remove_dead(Graph& graph, ArenaValues& keep);

// Puts nodes in the order of `key` (stable), drops those with a negative key, and mends producers and Graph::calls.
void reorder_nodes(Graph& graph, const Table<NodeId, int64_t>& key);

}  // namespace arbalest
