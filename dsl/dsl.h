// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models in C++: free functions on Tensor build the same graph that a graph file says.
//
//   Model model("lenet");
//   auto [image, label] = prefetch(model, {.source = "mnist:data/mnist", .batch = 64});
//   Tensor x = augment(image, {.mean = {0.1307}, .std = {0.3081}});
//   x = max_pool(relu(conv(x, {.filters = 20, .kernel = 5, .pad = 0})), {.kernel = 2});
//   Tensor loss = softmax_cross_entropy(linear(x, {.units = 10}), label);
//   train(loss, {.lr = 0.05});
//
// Types are inferred when the graph is verified (saved or run), because the shape of a sample is the source's to say.
// Everything throws GraphError, and Model::save() RunError too; a Tensor must not outlive its Model.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

class Model;

// A value of a model's graph.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Model& model, ValueId value) : model_(&model), value_(value) {}  // of a graph that holds it

  // Gives the value a name: in the graph file, in traces, and in front of its layer's parameters ("h1.weight").
  Tensor named(const std::string& name) const;
  const std::string& name() const;          // in the graph
  Model& model() const;                     // that it belongs to
  ValueId value() const { return value_; }  // its number in the graph

 private:
  Model* model_ = nullptr;
  ValueId value_ = kNone;
};

// A model under construction: functions of this file add operators to its graph, which a session trains.
class Model {
 public:
  // The name becomes that of the graph.
  explicit Model(std::string name);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const Graph& graph() const { return graph_; }  // as built so far
  // Any registered operator: "Relu", "arbalest.Linear". Inputs may be empty Tensors if the operator allows it.
  std::vector<Tensor> add(std::string_view op, const std::vector<Tensor>& inputs, Attributes attributes,
                          int outputs = 1);
  // A number that no training changes.
  Tensor constant(double number);
  // Text or binary, by the extension: .onnxtxt, .onnx. Throws RunError if the file cannot be written.
  void save(const std::string& path) const;

 private:
  friend class Tensor;
  Graph graph_;
};

// The source that batches are read from, and how far ahead.
struct PrefetchOptions {
  // "mnist:DIR", "cifar10:DIR", "glyphs:", "synthetic:", any registered scheme, or what the program passes to the run
  std::string source = "memory:";
  std::string split = "train";
  int64_t batch = 64;  // per learner
  int64_t depth = 3;   // batches read ahead; 0: each is read once the step before has ended
  // "host": what host nodes make of files stays in the host's memory; "device": all samples stay on each device
  std::string cache = "none";
};
// The first two fields of the source, images and labels: uint8 (N, C, H, W), or files (N) that random_resized_crop() or
// resize_crop() prepare; and, of most, int32 (N).
std::pair<Tensor, Tensor> prefetch(Model& model, const PrefetchOptions& options);

// Fields of a batch, by name.
class Batch {
 public:
  // The values that prefetch() made.
  explicit Batch(std::vector<Tensor> fields) : fields_(std::move(fields)) {}
  Tensor operator[](std::string_view name) const;  // throws GraphError if the field was not asked for

 private:
  std::vector<Tensor> fields_;
};
// The fields of these names, any of those that the source has: batch["points"]. Each adds a dimension, the batch's, in
// front of its shape.
Batch prefetch(Model& model, const PrefetchOptions& options, const std::vector<std::string>& fields);

// A random crop of image files (as the sources folder:, csv: and tar: give them), scaled to height × width. The host
// decodes and crops while it reads batches.
struct RandomResizedCropOptions {
  int64_t height = 224, width = 224;
  int64_t channels = 3;                               // 1: grey
  std::pair<double, double> area = {0.08, 1};         // least and most of the image's area
  std::pair<double, double> ratio = {0.75, 4.0 / 3};  // of width to height
  int64_t resize = 0;  // validation scales the shorter side to this before the centre crop; 0: size / 0.875
};
// Files (N) to uint8 images (N, channels, height, width).
Tensor random_resized_crop(Tensor files, const RandomResizedCropOptions& options = {});

// Scaling of image files to about height × width, and a crop of exactly that.
struct ResizeCropOptions {
  int64_t height = 224, width = 224;
  int64_t channels = 3;
  int64_t resize = 0;        // of the shorter side, before the crop; 0: no more than the size needs
  std::string fit = "crop";  // "stretch", "pad"
  bool random = false;       // in training the crop lies anywhere
};
// Files (N) to uint8 images (N, channels, height, width), prepared by the host while it reads batches.
Tensor resize_crop(Tensor files, const ResizeCropOptions& options = {});

// Random augmentation of images in training; arbalest.Augment in docs/operators.md describes each option in detail.
struct AugmentOptions {
  int64_t pad = 0;
  bool flip = false;
  std::vector<double> mean = {}, std = {};  // per channel, in 0 … 1
  std::vector<int64_t> crop = {};           // height and width of the output; none: the image's
  bool vertical_flip = false;
  std::vector<double> area = {};  // least and most of the image that is scaled to `crop`; none: nothing is scaled
  std::vector<double> ratio = {3.0 / 4, 4.0 / 3};  // of that part's width to its height
  int64_t resize = 0;                              // shorter side before validation's crop; 0: crop / 0.875
  double rotate = 0;                               // degrees, either way
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;  // around a factor of 1; hue in turns, either way
  double grey = 0, erase = 0;                                    // shares of the images
  std::vector<double> erase_area = {0.02, 0.33}, erase_ratio = {0.3, 3.3};  // of what is erased, height to width
};
// uint8 images (N, C, H, W) to float ones, scaled to 0 … 1 and normalised; changed at random in training alone.
Tensor augment(Tensor image, const AugmentOptions& options);

// MixUp and CutMix: images of a batch are blended, or parts of them exchanged.
struct MixOptions {
  int64_t classes = 0;
  double mixup = 0, cutmix = 0;  // α of Beta(α, α); 0: off
  double to_cutmix = 0.5;        // the probability of CutMix if both are on
  double probability = 1;        // that a batch is mixed at all
  bool per_sample = false;       // each sample draws for itself
};
// Augmented images and their classes to mixed images and rows (N, classes) for softmax_cross_entropy(); accuracy()
// takes the classes as they were.
std::pair<Tensor, Tensor> mix_images(Tensor image, Tensor label, const MixOptions& options);

// A convolution layer with its own weights.
struct ConvOptions {
  int64_t filters = 0;
  int64_t kernel = 1, stride = 1, dilation = 1, group = 1;
  std::optional<int64_t> pad = {};  // each side; none: what keeps the size at stride 1
  bool bias = true;
  std::string init = "kaiming_uniform";
};
// Images (N, C, H, W) to (N, filters, H', W').
Tensor conv(Tensor x, const ConvOptions& options);

// A layer that normalises each channel over the batch.
struct BatchNormOptions {
  double epsilon = 1e-5, momentum = 0.1;  // momentum: the weight of the new batch
};
// The same shape; the channels are axis 1. Validation uses running statistics.
Tensor batch_norm(Tensor x, const BatchNormOptions& options = {});

// A layer that normalises the channels of each place by themselves.
struct LayerNormOptions {
  int64_t axis = -1;  // of the channels: -1 of tokens, 1 of images
  double epsilon = 1e-5;
};
// The same shape.
Tensor layer_norm(Tensor x, const LayerNormOptions& options = {});

// A layer of units that are each connected to all features.
struct LinearOptions {
  int64_t units = 0;
  int64_t axis = 1;  // the first of the axes that are features; -1 for tokens
  bool bias = true;
  std::string init = "kaiming_uniform";
};
// (N, features) to (N, units); with axis -1 tokens (N, T, features) to (N, T, units).
Tensor linear(Tensor x, const LinearOptions& options);

// The window of a pooling, the same in both directions.
struct PoolOptions {
  int64_t kernel = 2;
  std::optional<int64_t> stride = {};  // none: the kernel
  int64_t pad = 0;
};
// The largest element of each window; padding is never the largest.
Tensor max_pool(Tensor x, const PoolOptions& options = {});
// The mean of each window.
Tensor average_pool(Tensor x, const PoolOptions& options = {});
// Images (N, C, H, W) to their means (N, C, 1, 1).
Tensor global_average_pool(Tensor x);
// max(x, 0); NaN stays NaN.
Tensor relu(Tensor x);
// x · sigmoid(x).
Tensor swish(Tensor x);
// x · min(max(x / 6 + 1/2, 0), 1).
Tensor hard_swish(Tensor x);
// x · Φ(x), by the error function.
Tensor gelu(Tensor x);
// 1 / (1 + exp(−x)).
Tensor sigmoid(Tensor x);
Tensor hard_sigmoid(Tensor x, double alpha, double beta);  // alpha · x + beta, between 0 and 1
// exp(x) divided by its sum along the axis.
Tensor softmax(Tensor x, int64_t axis = -1);
Tensor dropout(Tensor x, double ratio);                           // of the elements that are 0 in training
Tensor stochastic_depth(Tensor x, double ratio);                  // of the samples that are 0 in training
Tensor layer_scale(Tensor x, double initial, int64_t axis = -1);  // a factor for each channel
Tensor class_token(Tensor x, double deviation = 0.02);            // before the tokens (N, T, C)
// For each index (int32 or int64) the row of a trained table of rows × units.
Tensor embedding(Tensor indices, int64_t rows, int64_t units, double deviation = 1);
// Adds a trained vector to each of the tokens (N, T, C).
Tensor position_embedding(Tensor x, double deviation = 0.02);
// (N, …) to (N, features).
Tensor flatten(Tensor x);
Tensor reshape(Tensor x, const std::vector<int64_t>& shape);  // 0 keeps an extent, one -1 takes what is left
// Axes in another order: axis i of the result is axis permutation[i] of x.
Tensor transpose(Tensor x, const std::vector<int64_t>& permutation);
// The parts one after the other along the axis.
Tensor concat(const std::vector<Tensor>& parts, int64_t axis);
std::vector<Tensor> split(Tensor x, int64_t axis, int parts);  // equal ones
// The elements begin … end − 1 along the axis.
Tensor slice(Tensor x, int64_t axis, int64_t begin, int64_t end);
// The matrix product of the last two axes; axes before them are broadcast.
Tensor matmul(Tensor a, Tensor b);
// The sum of elements, broadcast to one shape.
Tensor add(Tensor a, Tensor b);
// The product of elements, broadcast to one shape.
Tensor multiply(Tensor a, Tensor b);
// As add().
inline Tensor operator+(Tensor a, Tensor b) {
  return add(a, b);
}
// As multiply().
inline Tensor operator*(Tensor a, Tensor b) {
  return multiply(a, b);
}

// Settings of the loss of classes.
struct LossOptions {
  double label_smoothing = 0;
  std::vector<double> class_weights = {};    // one a class; none: all are 1
  std::optional<int64_t> ignore_index = {};  // a label whose samples or places take no part
  int64_t axis = 1;                          // of the classes: 1 of images, −1 of tokens
};
// The mean loss of a batch, a scalar: logits (N, classes) and labels (N) or rows of probabilities (N, classes). If
// logits have more axes, each place has a label or a row of probabilities.
Tensor softmax_cross_entropy(Tensor logits, Tensor label, const LossOptions& options = {});
// Settings of the loss of labels that are decided each by itself.
struct SigmoidLossOptions {
  std::vector<double> pos_weight = {};  // one a label: the weight of positives; none: all are 1
};
// The mean loss of a batch, a scalar: logits and labels (N, labels), each 0 or 1, or missing if negative.
Tensor sigmoid_cross_entropy(Tensor logits, Tensor label, const SigmoidLossOptions& options = {});
// The mean of (prediction − target)², a scalar; both have one shape.
Tensor mean_squared_error(Tensor prediction, Tensor target);
// The mean of |prediction − target|, a scalar; both have one shape.
Tensor l1_loss(Tensor prediction, Tensor target);

// Settings of the share of samples that are classified right.
struct AccuracyOptions {
  int64_t top_k = 1;
  std::optional<int64_t> ignore_index = {};  // as LossOptions says
  int64_t axis = 1;
};
// The share of samples whose class is among the top_k scores, a scalar in 0 … 1.
Tensor accuracy(Tensor logits, Tensor label, const AccuracyOptions& options = {});
// Settings of the area under the ROC curve.
struct AucOptions {
  bool softmax = true;  // if labels are classes: compare the scores' softmax
};
// The area under the ROC curve over a whole validation, in 0 … 1: the mean over the classes or labels.
Tensor auc(Tensor scores, Tensor label, const AucOptions& options = {});
// Settings of precision, recall and F1.
struct RateOptions {
  std::string average = "macro";  // "weighted", "micro"
  double threshold = 0.5;         // the probability above which a label is predicted
  bool logits = true;             // false: if labels are not classes, scores are probabilities
};
// The share of those taken for a class that are of it, over a whole validation.
Tensor precision(Tensor scores, Tensor label, const RateOptions& options = {});
// The share of those of a class that are taken for it, over a whole validation.
Tensor recall(Tensor scores, Tensor label, const RateOptions& options = {});
// The harmonic mean of precision and recall, over a whole validation.
Tensor f1(Tensor scores, Tensor label, const RateOptions& options = {});

// The training rule: arbalest.Train in docs/operators.md describes each option in detail.
struct TrainOptions {
  double lr = 0.1, momentum = 0, weight_decay = 0;
  bool nesterov = false;
  std::string schedule =
      "constant";  // "step", "multistep", "cosine", "linear", "polynomial", "exponential", "onecycle"
  std::vector<double> milestones = {};  // epochs
  double step_size = 30, gamma = 0.1;
  double warmup = 0, warmup_from = 0;                        // epochs; the share of lr to begin with
  double epochs = 0, lr_end = 0;                             // of schedules that end; 0: with the run
  double power = 1;                                          // of "polynomial"
  double rise = 0.3, start_divisor = 25, end_divisor = 1e4;  // of "onecycle"
  std::string anneal = "cosine";                             // of "onecycle": or "linear"
  int64_t accumulate = 1;                                    // batches of an update
  std::string optimizer = "sgd";                             // "adamw", "rmsprop", "lars", "lamb", "muon"
  double beta1 = 0.9, beta2 = 0.999;                         // of "adamw" and "lamb"
  double epsilon = 1e-8;                                     // of those and "rmsprop"
  double alpha = 0.99;                                       // of "rmsprop"
  bool centered = false;                                     // of "rmsprop"
  double trust_coefficient = 0.001;                          // of "lars"
  double momentum_only_factor = 1;                           // of "muon": times the rate of what is not orthogonal
  bool decay_norms = true;                                   // false: no weight decay of parameters of one dimension
  // Names of parameters as files show them; * stands for any characters.
  std::vector<std::string> no_decay = {}, frozen = {}, rate_patterns = {};
  std::vector<std::string> momentum_only = {};  // of "muon"
  std::vector<double> rate_factors = {};        // for each of rate_patterns
  double clip_norm = 0;                         // of all gradients; 0: they are not clipped
  double ema = 0;       // decay, per update, of the weights' average that is validated and saved; 0: there is none
  Attributes own = {};  // of an optimiser that the program has registered
};
// A token: what is validated comes after it.
Tensor train(Tensor loss, const TrainOptions& options);

// How learners agree; docs/training.md has the equations.
struct SynchronizeOptions {
  // Or "ssgd", "local", "papa", "diloco", "none", or one that the program has registered.
  std::string strategy = "sma";
  // Each number below that is -1 stands for the strategy's own.
  int64_t every = -1;         // updates from one averaging to the next
  int64_t every_hosts = 1;    // sma, local: averagings from one over all hosts to the next
  double alpha = -1;          // sma, papa: how far learners are drawn to the average
  double beta = -1;           // sma, diloco: how far the average is drawn to the learners' mean
  double momentum = -1;       // sma, diloco: of the average
  bool follows_rate = false;  // sma, papa: alpha is multiplied by the learning rate over its greatest value
  double growth = 0;          // of `every`: to (growth / learning rate)^2 where that is more; 0: none
  int64_t from = 0;           // the epoch from which it takes the place of the one whose token it takes
  double bucket_mib = 32;     // ssgd: gradients that travel together, at least
};
// A token, as Train's: states how the learners agree, if there are several. The token of another synchronize() may be
// given instead of Train's.
Tensor synchronize(Tensor trained, const SynchronizeOptions& options = {});

// When and with which data the model is measured.
struct ValidateOptions {
  std::string split = "test";
  int64_t batch = 0;  // 0: as in training
  int64_t every_epochs = 1;
  int64_t recalibrate = 0;  // training batches to estimate batch norms' statistics with; 0: those of training are used
  std::vector<std::string> directions = {};  // "NAME:min" or "NAME:max", if no operator says which way is better
};
// A token. Measures the metrics, scalars of the same graph, of the trained model.
Tensor validate(Tensor trained, const std::vector<Tensor>& metrics, const ValidateOptions& options = {});

}  // namespace arbalest
