// SPDX-License-Identifier: Apache-2.0
#include "dsl/dsl.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>

#include "graph/constants.h"
#include "graph/file/graph_file.h"
#include "graph/file/onnx_file.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"
#include "ops/names.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

constexpr const char* kExpectedTensor = "expected one that a function of dsl/dsl.h returned";

// "softmax_cross_entropy" for "arbalest.SoftmaxCrossEntropy": values are named after what makes them.
std::string snake_case(std::string_view op) {
  std::string name;
  for (const char c : op.substr(op.rfind('.') + 1)) {
    if (std::isupper(uint8_t(c)) && !name.empty()) name += '_';
    name += char(std::tolower(uint8_t(c)));
  }
  return name;
}

// Adds the operator to the model of its first operand.
std::vector<Tensor> apply(std::string_view op, const std::vector<Tensor>& operands, Attributes attributes,
                          int outputs = 1) {
  if (operands[0].value() == kNone) {
    throw GraphError(fmt::format("{}: the first operand is an empty Tensor; {}", op, kExpectedTensor));
  }
  return operands[0].model().add(op, operands, std::move(attributes), outputs);
}

Tensor unary(std::string_view op, Tensor x, Attributes attributes = {}) {
  return apply(op, {x}, std::move(attributes))[0];
}

Attributes attributes_of(const PrefetchOptions& options) {
  Attributes attributes = {
      {"source", options.source}, {"split", options.split}, {"batch", options.batch}, {"depth", options.depth}};
  if (options.cache != "none") attributes.set("cache", options.cache);
  return attributes;
}

Ints four(int64_t pad) {
  return {pad, pad, pad, pad};
}

Tensor pool(std::string_view op, Tensor x, const PoolOptions& options) {
  const int64_t stride = options.stride.value_or(options.kernel);
  Attributes attributes = {{"kernel_shape", Ints{options.kernel, options.kernel}}};
  if (stride != 1) attributes.set("strides", Ints{stride, stride});
  if (options.pad != 0) attributes.set("pads", four(options.pad));
  return unary(op, x, std::move(attributes));
}

}  // namespace

Model::Model(std::string name) {
  graph_.registry = &builtin_ops();
  graph_.name = std::move(name);
  graph_.opsets = {{"", 17}, {"arbalest", 1}};
}

std::vector<Tensor> Model::add(std::string_view op, const std::vector<Tensor>& inputs, Attributes attributes,
                               int outputs) {
  const Op* found = graph_.registry->find(op);
  if (!found || found->internal) {
    std::vector<std::string> names;
    for (const Op& known : graph_.registry->all()) {
      if (!known.internal) names.push_back(known.qualified_name());
    }
    throw GraphError(fmt::format("unknown operator '{}'{}", op, did_you_mean(op, names)));
  }
  if (outputs < 1) throw GraphError(fmt::format("{}: {} outputs are asked for, expected 1 or more", op, outputs));
  std::vector<ValueId> values;
  for (const Tensor& input : inputs) {
    if (input.value() != kNone && &input.model() != this) {
      throw GraphError(fmt::format("'{}' belongs to another model", input.name()));
    }
    values.push_back(input.value());
  }
  const NodeId node = graph_.add_node(*found, snake_case(op), std::move(values), outputs, std::move(attributes));
  graph_.nodes[node].name = graph_.values[graph_.nodes[node].outputs[0]].name;
  std::vector<Tensor> made;
  for (const ValueId output : graph_.nodes[node].outputs) made.emplace_back(*this, output);
  return made;
}

Tensor Model::constant(double number) {
  const ValueId value = graph_.add_value("constant", {DataType::Float32, {}}, Role::Constant);
  graph_.values[value].initializer = data_of(std::vector<float>{float(number)});
  return {*this, value};
}

void Model::save(const std::string& path) const {
  if (path.ends_with(".onnx")) {
    write_onnx(graph_, path);
  } else {
    write_graph_file(graph_, path);
  }
}

Model& Tensor::model() const {
  if (!model_ || value_ == kNone) throw GraphError(fmt::format("the Tensor is empty; {}", kExpectedTensor));
  return *model_;
}

Tensor Tensor::named(const std::string& name) const {
  Graph& graph = model().graph_;
  const ValueId holder = graph.find_value(name);
  if (holder == value_) return *this;
  if (holder != kNone) throw GraphError(fmt::format("the name '{}' is taken in '{}'", name, graph.name));
  graph.rename(value_, name);
  const Value& value = graph.values[value_];
  if (value.producer != kNone) {
    Node& producer = graph.nodes[value.producer];
    if (producer.outputs[0] == value_) producer.name = name;
  }
  return *this;
}

const std::string& Tensor::name() const {
  return model().graph().values[value_].name;
}

std::pair<Tensor, Tensor> prefetch(Model& model, const PrefetchOptions& options) {
  const auto made = model.add(op::Prefetch, {}, attributes_of(options), 2);
  return {made[0].named("image"), made[1].named("label")};
}

Batch prefetch(Model& model, const PrefetchOptions& options, const std::vector<std::string>& fields) {
  if (fields.empty()) throw GraphError("prefetch: no field is asked for, expected one or more");
  Attributes attributes = attributes_of(options);
  attributes.set("by_name", int64_t{1});
  std::vector<Tensor> made = model.add(op::Prefetch, {}, std::move(attributes), int(fields.size()));
  for (size_t i = 0; i < fields.size(); ++i) made[i].named(fields[i]);
  return Batch(std::move(made));
}

Tensor Batch::operator[](std::string_view name) const {
  std::vector<std::string> names;
  for (const Tensor& field : fields_) {
    if (field.name() == name) return field;
    names.push_back(field.name());
  }
  throw GraphError(fmt::format("the batch has no field '{}': it was made with {}{}", name, fmt::join(names, ", "),
                               did_you_mean(name, names)));
}

Tensor random_resized_crop(Tensor files, const RandomResizedCropOptions& options) {
  return unary(op::RandomResizedCrop, files,
               {{"size", Ints{options.height, options.width}},
                {"channels", options.channels},
                {"area", std::vector<double>{options.area.first, options.area.second}},
                {"ratio", std::vector<double>{options.ratio.first, options.ratio.second}},
                {"resize", options.resize}});
}

Tensor resize_crop(Tensor files, const ResizeCropOptions& options) {
  return unary(op::ResizeCrop, files,
               {{"size", Ints{options.height, options.width}},
                {"channels", options.channels},
                {"resize", options.resize},
                {"fit", options.fit},
                {"random", int64_t(options.random)}});
}

Tensor augment(Tensor image, const AugmentOptions& options) {
  Attributes attributes = {
      {"pad", options.pad}, {"flip", int64_t(options.flip)}, {"mean", options.mean}, {"std", options.std}};
  const AugmentOptions usual;
  const auto set = [&](const char* name, auto AugmentOptions::*option) {
    if (options.*option != usual.*option) attributes.set(name, options.*option);
  };
  set("crop", &AugmentOptions::crop);
  if (options.vertical_flip) attributes.set("vertical_flip", int64_t{1});
  set("area", &AugmentOptions::area);
  set("ratio", &AugmentOptions::ratio);
  set("resize", &AugmentOptions::resize);
  set("rotate", &AugmentOptions::rotate);
  set("brightness", &AugmentOptions::brightness);
  set("contrast", &AugmentOptions::contrast);
  set("saturation", &AugmentOptions::saturation);
  set("hue", &AugmentOptions::hue);
  set("grey", &AugmentOptions::grey);
  set("erase", &AugmentOptions::erase);
  set("erase_area", &AugmentOptions::erase_area);
  set("erase_ratio", &AugmentOptions::erase_ratio);
  return unary(op::Augment, image, std::move(attributes));
}

std::pair<Tensor, Tensor> mix_images(Tensor image, Tensor label, const MixOptions& options) {
  const auto made = apply(op::MixImages, {image, label},
                          {{"classes", options.classes},
                           {"mixup", options.mixup},
                           {"cutmix", options.cutmix},
                           {"switch", options.to_cutmix},
                           {"probability", options.probability},
                           {"per_sample", int64_t(options.per_sample)}},
                          2);
  return {made[0], made[1]};
}

Tensor conv(Tensor x, const ConvOptions& options) {
  Attributes attributes = {{"filters", options.filters},
                           {"kernel_shape", Ints{options.kernel, options.kernel}},
                           {"group", options.group},
                           {"bias", int64_t(options.bias)},
                           {"init", options.init}};
  if (options.stride != 1) attributes.set("strides", Ints{options.stride, options.stride});
  if (options.dilation != 1) attributes.set("dilations", Ints{options.dilation, options.dilation});
  if (options.pad) attributes.set("pads", four(*options.pad));
  return unary(op::ConvLayer, x, std::move(attributes));
}

Tensor batch_norm(Tensor x, const BatchNormOptions& options) {
  return unary(op::BatchNorm, x, {{"epsilon", options.epsilon}, {"momentum", options.momentum}});
}

Tensor layer_norm(Tensor x, const LayerNormOptions& options) {
  return unary(op::LayerNorm, x, {{"axis", options.axis}, {"epsilon", options.epsilon}});
}

Tensor linear(Tensor x, const LinearOptions& options) {
  return unary(
      op::Linear, x,
      {{"units", options.units}, {"axis", options.axis}, {"bias", int64_t(options.bias)}, {"init", options.init}});
}

Tensor max_pool(Tensor x, const PoolOptions& options) {
  return pool(op::MaxPool, x, options);
}
Tensor average_pool(Tensor x, const PoolOptions& options) {
  return pool(op::AveragePool, x, options);
}
Tensor global_average_pool(Tensor x) {
  return unary(op::GlobalAveragePool, x);
}

Tensor relu(Tensor x) {
  return unary(op::Relu, x);
}
Tensor swish(Tensor x) {
  return unary(op::Swish, x);
}
Tensor hard_swish(Tensor x) {
  return unary(op::HardSwish, x);
}
Tensor gelu(Tensor x) {
  return unary(op::Gelu, x);
}
Tensor sigmoid(Tensor x) {
  return unary(op::Sigmoid, x);
}
Tensor hard_sigmoid(Tensor x, double alpha, double beta) {
  return unary(op::HardSigmoid, x, {{"alpha", alpha}, {"beta", beta}});
}
Tensor softmax(Tensor x, int64_t axis) {
  return unary(op::Softmax, x, {{"axis", axis}});
}

Tensor dropout(Tensor x, double ratio) {
  return unary(op::Dropout, x, {{"ratio", ratio}, {"training_mode", int64_t{1}}});
}
Tensor stochastic_depth(Tensor x, double ratio) {
  return unary(op::StochasticDepth, x, {{"ratio", ratio}});
}
Tensor layer_scale(Tensor x, double initial, int64_t axis) {
  return unary(op::LayerScale, x, {{"axis", axis}, {"initial", initial}});
}
Tensor class_token(Tensor x, double deviation) {
  return unary(op::ClassToken, x, {{"deviation", deviation}});
}
Tensor embedding(Tensor indices, int64_t rows, int64_t units, double deviation) {
  return unary(op::Embedding, indices, {{"rows", rows}, {"units", units}, {"deviation", deviation}});
}
Tensor position_embedding(Tensor x, double deviation) {
  return unary(op::PositionEmbedding, x, {{"deviation", deviation}});
}

Tensor flatten(Tensor x) {
  return unary(op::Flatten, x);
}
Tensor reshape(Tensor x, const Ints& shape) {
  return unary(op::Reshape, x, {{"shape", shape}});
}
Tensor transpose(Tensor x, const Ints& permutation) {
  return unary(op::Transpose, x, {{"perm", permutation}});
}
Tensor concat(const std::vector<Tensor>& parts, int64_t axis) {
  if (parts.empty()) throw GraphError("concat: there is no tensor, expected one or more");
  return apply(op::Concat, parts, {{"axis", axis}})[0];
}
std::vector<Tensor> split(Tensor x, int64_t axis, int parts) {
  return apply(op::Split, {x}, {{"axis", axis}}, parts);
}
Tensor slice(Tensor x, int64_t axis, int64_t begin, int64_t end) {
  return unary(op::Slice, x, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{axis}}});
}

Tensor matmul(Tensor a, Tensor b) {
  return apply(op::MatMul, {a, b}, {})[0];
}
Tensor add(Tensor a, Tensor b) {
  return apply(op::Add, {a, b}, {})[0];
}
Tensor multiply(Tensor a, Tensor b) {
  return apply(op::Mul, {a, b}, {})[0];
}

namespace {

std::vector<int64_t> list_of(const std::optional<int64_t>& label) {
  return label ? std::vector<int64_t>{*label} : std::vector<int64_t>{};
}

}  // namespace

Tensor softmax_cross_entropy(Tensor logits, Tensor label, const LossOptions& options) {
  return apply(op::SoftmaxCrossEntropy, {logits, label},
               {{"label_smoothing", options.label_smoothing},
                {"class_weights", options.class_weights},
                {"ignore_index", list_of(options.ignore_index)},
                {"axis", options.axis}})[0];
}
Tensor sigmoid_cross_entropy(Tensor logits, Tensor label, const SigmoidLossOptions& options) {
  return apply(op::SigmoidCrossEntropy, {logits, label}, {{"pos_weight", options.pos_weight}})[0];
}
Tensor mean_squared_error(Tensor prediction, Tensor target) {
  return apply(op::MeanSquaredError, {prediction, target}, {})[0];
}
Tensor l1_loss(Tensor prediction, Tensor target) {
  return apply(op::L1Loss, {prediction, target}, {})[0];
}

Tensor accuracy(Tensor logits, Tensor label, const AccuracyOptions& options) {
  return apply(op::Accuracy, {logits, label},
               {{"top_k", options.top_k}, {"ignore_index", list_of(options.ignore_index)}, {"axis", options.axis}})[0];
}
Tensor auc(Tensor scores, Tensor label, const AucOptions& options) {
  return apply(op::AUC, {scores, label}, {{"softmax", int64_t(options.softmax)}})[0];
}

namespace {

Tensor rate(std::string_view op, Tensor scores, Tensor label, const RateOptions& options) {
  return apply(
      op, {scores, label},
      {{"average", options.average}, {"threshold", options.threshold}, {"logits", int64_t(options.logits)}})[0];
}

}  // namespace

Tensor precision(Tensor scores, Tensor label, const RateOptions& options) {
  return rate(op::Precision, scores, label, options);
}
Tensor recall(Tensor scores, Tensor label, const RateOptions& options) {
  return rate(op::Recall, scores, label, options);
}
Tensor f1(Tensor scores, Tensor label, const RateOptions& options) {
  return rate(op::F1, scores, label, options);
}

Tensor train(Tensor loss, const TrainOptions& options) {
  Attributes attributes = {{"optimizer", options.optimizer},
                           {"lr", options.lr},
                           {"momentum", options.momentum},
                           {"nesterov", int64_t(options.nesterov)},
                           {"beta1", options.beta1},
                           {"beta2", options.beta2},
                           {"epsilon", options.epsilon},
                           {"alpha", options.alpha},
                           {"centered", int64_t(options.centered)},
                           {"trust_coefficient", options.trust_coefficient},
                           {"momentum_only", options.momentum_only},
                           {"momentum_only_factor", options.momentum_only_factor},
                           {"decay_norms", int64_t(options.decay_norms)},
                           {"no_decay", options.no_decay},
                           {"frozen", options.frozen},
                           {"rate_patterns", options.rate_patterns},
                           {"rate_factors", options.rate_factors},
                           {"clip_norm", options.clip_norm},
                           {"weight_decay", options.weight_decay},
                           {"schedule", options.schedule},
                           {"milestones", options.milestones},
                           {"step_size", options.step_size},
                           {"gamma", options.gamma},
                           {"power", options.power},
                           {"rise", options.rise},
                           {"start_divisor", options.start_divisor},
                           {"end_divisor", options.end_divisor},
                           {"anneal", options.anneal},
                           {"warmup", options.warmup},
                           {"warmup_from", options.warmup_from},
                           {"epochs", options.epochs},
                           {"lr_end", options.lr_end},
                           {"accumulate", options.accumulate},
                           {"ema", options.ema}};
  for (const NamedAttribute& own : options.own) attributes.set(own.name, own.value);
  return unary(op::Train, loss, std::move(attributes));
}

Tensor synchronize(Tensor trained, const SynchronizeOptions& options) {
  return apply(op::Synchronize, {trained},
               {{"strategy", options.strategy},
                {"every", options.every},
                {"every_hosts", options.every_hosts},
                {"alpha", options.alpha},
                {"beta", options.beta},
                {"momentum", options.momentum},
                {"follows_rate", int64_t(options.follows_rate)},
                {"growth", options.growth},
                {"from", options.from},
                {"bucket_mib", options.bucket_mib}})[0];
}

Tensor validate(Tensor trained, const std::vector<Tensor>& metrics, const ValidateOptions& options) {
  std::vector<Tensor> inputs = {trained};
  inputs.insert(inputs.end(), metrics.begin(), metrics.end());
  Attributes attributes = {{"split", options.split},
                           {"batch", options.batch},
                           {"every_epochs", options.every_epochs},
                           {"recalibrate", options.recalibrate}};
  if (!options.directions.empty()) attributes.set("directions", options.directions);
  return apply(op::Validate, inputs, std::move(attributes))[0];
}

}  // namespace arbalest
