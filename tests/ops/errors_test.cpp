// SPDX-License-Identifier: Apache-2.0

// Operands and attributes that do not fit are refused with where, what was found and what was expected.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "graph/file/graph_file.h"
#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

using namespace arbalest;
using namespace arbalest::test;

namespace errors_test {
namespace {

TensorType floats(const Shape& shape) {
  return {DataType::Float32, shape};
}
TensorType labels(int64_t count) {
  return {DataType::Int32, {count}};
}
TensorType pixels() {
  return {DataType::Uint8, {1, 3, 8, 8}};
}
TensorType image() {
  return floats({2, 3, 8, 8});
}

using Ints = std::vector<int64_t>;

Attributes with(const char* name, Attribute value) {
  Attributes attributes;
  attributes.set(name, std::move(value));
  return attributes;
}

// The message with which inference refuses the operator "h1".
std::string refusal(const char* op, const std::vector<TensorType>& inputs, const Attributes& attributes = {},
                    int outputs = 1) {
  try {
    const Case test(builtin_ops().get(op), inputs, outputs, attributes, "h1");
  } catch (const GraphError& error) {
    return error.what();
  }
  return "accepted";
}

void check(const std::string& message, const std::vector<std::string>& parts) {
  INFO(message);
  CHECK(message.find("'h1'") != std::string::npos);
  for (const std::string& part : parts) {
    INFO("expected: ", part);
    CHECK(message.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("Conv refuses filters, biases and windows that do not fit") {
  const TensorType w = floats({4, 3, 3, 3});
  check(refusal("Conv", {image(), floats({4, 5, 3, 3})}), {"'W' is float[4,5,3,3]", "'X'", "3 channels"});
  check(refusal("Conv", {image(), w}, with("kernel_shape", Ints{5, 5})),
        {"'kernel_shape' is [5, 5]", "float[4,3,3,3]"});
  check(refusal("Conv", {image(), floats({4, 3, 9, 9})}), {"spans 9 pixels of height", "8 with padding"});
  check(refusal("Conv", {image(), floats({4, 1, 3, 3})}, with("group", int64_t{2})), {"'group' is 2", "3 channels"});
  check(refusal("Conv", {image(), w, floats({3})}), {"'B' is float[3]", "float[4]"});
}

TEST_CASE("windows need four pads and positive strides") {
  const TensorType w = floats({4, 3, 3, 3});
  CHECK(refusal("Conv", {image(), w}, with("auto_pad", "SAME_UPPER")) == "accepted");
  check(refusal("Conv", {image(), floats({4, 3, 3})}), {"'W' is float[4,3,3]", "as many axes as input 'X'"});
  check(refusal("Conv", {image(), w}, with("pads", Ints{1, 1})), {"'pads' is [1, 1]", "4 numbers from 0 to 2^30"});
  check(refusal("Conv", {image(), w}, with("strides", Ints{0, 1})),
        {"'strides' is [0, 1]", "2 numbers from 1 to 2^30"});
  Attributes pool = with("kernel_shape", Ints{2, 2});
  pool.set("pads", Ints{2, 2, 2, 2});
  check(refusal("MaxPool", {image()}, pool), {"'pads' holds 2", "less than the window's 2"});
}

TEST_CASE("types and ranks are checked") {
  check(refusal("Add", {image(), floats({2, 3, 7, 1})}),
        {"'B' is float[2,3,7,1]", "broadcasts with input 'A', float[2,3,8,8]", "number 2 has 7 and 8"});
  check(refusal("Mul", {image(), {DataType::Float64, {1}}}), {"'B' is double[1]", "expected float[1]"});
  check(refusal("Sub", {floats(Shape(9, 1)), floats({})}), {"'A' is float[1,1,1,1,1,1,1,1,1]", "at most 8"});
  check(refusal("Relu", {{DataType::Uint8, {2}}}), {"'X' is uint8[2]", "float"});
  check(refusal("GlobalAveragePool", {floats({2, 3})}), {"rank 2", "expected rank 3 or 4 or 5"});
  check(refusal("Flatten", {image()}, with("axis", int64_t{5})), {"'axis' is 5", "-4 to 4"});
}

TEST_CASE("Softmax refuses what had another meaning in the opset of the file") {
  const auto refused = [](int opset, const char* shape, const char* attributes) -> std::string {
    const std::string text = fmt::format(
        "<ir_version: 8, opset_import: [\"\" : {}]>\ng (float[{}] x) => (y) {{ h1 = Softmax {} (x) y = Relu (h1) }}",
        opset, shape, attributes);
    try {
      Graph graph = read_graph_text(text, "f", builtin_ops());
      verify(graph);
    } catch (const GraphError& error) {
      return error.what();
    }
    return "accepted";
  };
  check(refused(11, "2, 3, 4", "<axis = 1>"), {"'axis' is 1", "float[2,3,4]", "opset 13"});
  check(refused(12, "2, 3, 4", ""), {"'axis' is 1", "float[2,3,4]", "opset 13"});
  CHECK(refused(11, "2, 3, 4", "<axis = 2>") == "accepted");
  CHECK(refused(11, "2, 3, 4", "<axis = -1>") == "accepted");
  CHECK(refused(11, "2, 3", "") == "accepted");
  CHECK(refused(13, "2, 3, 4", "<axis = 1>") == "accepted");
  CHECK(refused(17, "2, 3, 4", "") == "accepted");
}

TEST_CASE("Transpose wants every axis once") {
  check(refusal("Transpose", {image()}, with("perm", Ints{0, 2, 2, 3})), {"'perm' is [0, 2, 2, 3]", "0 to 3"});
  check(refusal("Transpose", {image()}, with("perm", Ints{0, 1})), {"'perm' is [0, 1]", "float[2,3,8,8]"});
}

TEST_CASE("Gemm refuses matrices that do not meet") {
  check(refusal("Gemm", {floats({2, 3}), floats({4, 5})}), {"3 columns meet 4 rows"});
  check(refusal("Gemm", {floats({2, 3}), floats({3, 5}), floats({2})}),
        {"'C' is float[2]", "float[2,5] or what broadcasts to it"});
  check(refusal("Gemm", {floats({2, 3}), floats({3, 5})}, with("transA", int64_t{2})), {"'transA' is 2", "0 or 1"});
}

TEST_CASE("MatMul, normalisations and ConvTranspose refuse operands that do not fit") {
  check(refusal("MatMul", {floats({2, 3}), floats({4, 5})}), {"'A' is float[2,3]", "3 columns meet 4 rows"});
  check(refusal("MatMul", {floats({2, 4, 3}), floats({5, 3, 2})}), {"2 and 5 matrices along an axis do not broadcast"});
  check(refusal("MatMul", {floats({}), floats({3})}), {"input 'A' is a scalar"});
  check(refusal("LayerNormalization", {image(), floats({8})}, with("axis", int64_t{4})), {"'axis' is 4", "-4 to 3"});
  check(refusal("LayerNormalization", {image(), floats({3})}), {"'Scale' is float[3]", "float[8]"});
  check(refusal("GroupNormalization", {image(), floats({3}), floats({3})}, with("num_groups", int64_t{2})),
        {"'num_groups' is 2", "3 channels"});
  check(refusal("InstanceNormalization", {image(), floats({3}), floats({2})}), {"'B' is float[2]", "float[3]"});
  check(refusal("ConvTranspose", {image(), floats({4, 2, 3, 3})}), {"'W' is float[4,2,3,3]", "3 channels"});
  Attributes transposed = with("output_padding", Ints{1, 0});
  check(refusal("ConvTranspose", {image(), floats({3, 2, 3, 3})}, transposed), {"'output_padding' holds 1", "stride"});
  check(refusal("ConvTranspose", {image(), floats({3, 2, 3, 3})}, with("output_shape", Ints{40, 10})),
        {"output of 40 pixels", "8 windows"});
}

TEST_CASE("losses and metrics want one label a row") {
  check(refusal("arbalest.SoftmaxCrossEntropy", {floats({4, 10}), labels(5)}), {"'label' is int32[5]", "int32[4]"});
  check(refusal("arbalest.Accuracy", {floats({4, 10}), labels(4)}, with("top_k", int64_t{11})),
        {"'top_k' is 11", "10 classes"});
}

TEST_CASE("layers refuse what they cannot make") {
  check(refusal("arbalest.BatchNorm", {image()}, with("momentum", 2.0)), {"'momentum' is 2", "0 to 1"});
  Attributes conv = with("filters", int64_t{4});
  conv.set("kernel_shape", Ints{3, 3});
  conv.set("init", "kaiming_norml");
  check(refusal("arbalest.Conv", {image()}, conv), {"\"kaiming_norml\"", "did you mean 'kaiming_normal'"});
  conv.set("init", "normal:much");
  check(refusal("arbalest.Conv", {image()}, conv), {"\"normal:much\"", "normal:STD"});
  conv.set("init", "uniform:-1");
  check(refusal("arbalest.Conv", {image()}, conv), {"\"uniform:-1\"", "uniform:BOUND"});
}

TEST_CASE("Augment refuses crops beyond the padded image and a mean for other channels") {
  check(refusal("arbalest.Augment", {pixels()}, with("mean", std::vector<double>{1, 2})),
        {"'mean' has 2 numbers", "3 channels"});
  check(
      refusal("arbalest.Augment", {{DataType::Uint8, {2, 8, 8, 3}}}, with("mean", std::vector<double>{0.5, 0.5, 0.5})),
      {"one for each of 8 channels; images come as N, C, H, W, not as N, H, W, C"});
  check(refusal("arbalest.Augment", {pixels()}, with("std", std::vector<double>{0})), {"'std' holds 0", "more than 0"});
  for (const double deviation : {double(NAN), double(INFINITY), 1e-300}) {
    check(refusal("arbalest.Augment", {pixels()}, with("std", std::vector<double>{deviation})), {"'std' holds "});
  }
  for (const double mean : {double(NAN), -double(INFINITY), 1e300, -0.1, 123.675}) {
    check(refusal("arbalest.Augment", {pixels()}, with("mean", std::vector<double>{mean})),
          {"'mean' holds ", "expected 0 to 1: pixels are divided by 255 first"});
  }
  check(refusal("arbalest.Augment", {pixels()}, with("crop", Ints{9, 8})), {"'crop' is [9, 8]", "1 to 8"});
  check(refusal("arbalest.Augment", {image()}), {"'image' is float[2,3,8,8]", "uint8[N,C,H,W]"});
}

TEST_CASE("Augment refuses ranges, factors and colours that make no sense") {
  using Floats = std::vector<double>;
  const auto of_pixels = [](const char* name, Attribute value) {
    return refusal("arbalest.Augment", {pixels()}, with(name, std::move(value)));
  };
  check(of_pixels("area", Floats{0.5}), {"'area' is [0.5]", "[least, most] within 1e-06 and 1"});
  check(of_pixels("area", Floats{0, 1}), {"'area' is [0.0, 1.0]"});
  check(of_pixels("area", Floats{0.9, 0.8}), {"'area' is [0.9, 0.8]"});
  check(of_pixels("ratio", Floats{1, 2000}), {"'ratio' is [1.0, 2000.0]", "within 0.001 and 1000"});
  check(of_pixels("erase_area", Floats{0.1, 1.1}), {"'erase_area' is [0.1, 1.1]"});
  check(of_pixels("rotate", 181.0), {"'rotate' is 181", "0 to 180"});
  check(of_pixels("hue", 0.6), {"'hue' is 0.6", "0 to 0.5"});
  check(of_pixels("erase", -0.1), {"'erase' is -0.1", "0 to 1"});
  check(of_pixels("vertical_flip", int64_t{2}), {"'vertical_flip' is 2"});
  check(of_pixels("resize", int64_t{9}), {"'resize' is given without 'area'"});
  Attributes resized = with("area", Floats{0.1, 1});
  resized.set("resize", int64_t{7});
  check(refusal("arbalest.Augment", {pixels()}, resized), {"scales images to 7 by 7", "at least the crop, [8, 8]"});
  resized.set("crop", Ints{int64_t{1} << 17, int64_t{1} << 17});
  check(refusal("arbalest.Augment", {pixels()}, resized), {"images of 17179869184 pixels and 3 channels", "at most"});
  check(of_pixels("pad", int64_t{1} << 40), {"'pad' is 1099511627776", "0 to 1048576"});

  const TensorType grey{DataType::Uint8, {1, 1, 8, 8}}, pair{DataType::Uint8, {1, 2, 8, 8}};
  check(refusal("arbalest.Augment", {grey}, with("hue", 0.1)), {"'hue' needs images of 3 channels", "has 1"});
  check(refusal("arbalest.Augment", {pair}, with("contrast", 0.1)), {"'contrast' needs images of 3 channels, or of 1"});
  CHECK(refusal("arbalest.Augment", {grey}, with("contrast", 0.1)) == "accepted");
}

TEST_CASE("MixImages refuses labels that are not classes, and shares and shapes that make no sense") {
  const auto refused = [](const TensorType& images, const TensorType& label, const char* name, Attribute value) {
    Attributes attributes = with("classes", int64_t{10});
    attributes.set(name, std::move(value));
    return refusal("arbalest.MixImages", {images, label}, attributes, 2);
  };
  check(refused(image(), labels(2), "mixup", -0.1), {"'mixup' is -0.1", "0 to 1000"});
  check(refused(image(), labels(2), "switch", 1.5), {"'switch' is 1.5", "0 to 1"});
  check(refused(image(), labels(2), "per_sample", int64_t{3}), {"'per_sample' is 3"});
  check(refused(image(), labels(2), "classes", int64_t{0}), {"'classes' is 0"});
  check(refused(image(), labels(3), "mixup", 0.1), {"'label' is int32[3]", "int32[2]", "one label an image"});
  check(refused(image(), floats({2, 10}), "mixup", 0.1), {"'label' is float[2,10]", "int32[N]"});
  check(refused(pixels(), labels(1), "mixup", 0.1), {"'image' is uint8[1,3,8,8]"});
  check(refused(floats({2, 3, 0, 8}), labels(2), "mixup", 0.1), {"'image' is float[2,3,0,8]", "1 to 1048576"});
}

TEST_CASE("Train names the nearest optimizer and schedule") {
  Attributes train = with("lr", 0.1);
  check(refusal("arbalest.Train", {floats({2})}, train), {"'loss' is float[2]", "a scalar"});
  train.set("optimizer", "sgdm");
  check(refusal("arbalest.Train", {floats({})}, train), {"'optimizer' is \"sgdm\"", "did you mean 'sgd'"});
  train.set("optimizer", "sgd");
  train.set("schedule", "multi_step");
  check(refusal("arbalest.Train", {floats({})}, train), {"'schedule'", "did you mean 'multistep'"});
  check(refusal("arbalest.Train", {floats({})}), {"lr"});
}

TEST_CASE("norms refuse an epsilon that is 0 as a float, and layers what has no features") {
  const Attributes tiny = with("epsilon", 1e-50);
  for (const char* norm : {"arbalest.BatchNorm", "arbalest.LayerNorm"}) {
    check(refusal(norm, {image()}, tiny), {"'epsilon' is 1e-50", "1.18e-38"});
  }
  check(refusal("BatchNormalization", {image(), floats({3}), floats({3}), floats({3}), floats({3})}, tiny),
        {"'epsilon' is 1e-50"});
  check(refusal("LayerNormalization", {image(), floats({3, 8, 8})}, {{"epsilon", 1e-50}, {"axis", int64_t{1}}}),
        {"'epsilon' is 1e-50"});
  check(refusal("arbalest.Linear", {floats({2, 0})}, with("units", int64_t{3})), {"float[2,0], which has no features"});
  check(refusal("arbalest.Conv", {floats({2, 0, 8, 8})}, {{"filters", int64_t{4}}, {"kernel_shape", Ints{3, 3}}}),
        {"float[2,0,8,8], which has no channels"});
}

TEST_CASE("Train refuses numbers out of range and attributes without effect") {
  const auto refused = [](Attributes attributes) {
    if (!attributes.find("lr")) attributes.set("lr", 0.1);
    return refusal("arbalest.Train", {floats({})}, attributes);
  };
  check(refused({{"momentum", 9.0}}), {"'momentum' is 9", "less than 1"});
  check(refused({{"momentum", -0.1}}), {"'momentum' is -0.1", "at least 0"});
  check(refused({{"ema", 1.0}}), {"'ema' is 1", "less than 1"});
  check(refused({{"ema", -0.5}}), {"'ema' is -0.5", "at least 0"});
  check(refused({{"ema", std::nan("")}}), {"'ema' is nan", "at least 0"});
  check(refused({{"nesterov", int64_t{1}}}), {"'nesterov' is 1", "'momentum' above 0"});
  check(refused({{"gamma", 0.5}}),
        {"'gamma' has no effect with schedule \"constant\"", "multistep", "0.1 to take it out"});
  check(refused({{"step_size", 2.0}, {"schedule", "cosine"}}), {"'step_size' has no effect", "expected \"step\""});
  check(refused({{"gamma", 10.0}}), {"'gamma' is 10", "at most 1"});
  check(refused({{"warmup_from", 2.0}}), {"'warmup_from' is 2", "at most 1"});
  const std::vector<double> milestones = {4, 6};
  check(refused({{"milestones", milestones}}), {"'milestones' has no effect", "\"constant\"", "\"multistep\""});
  check(refused({{"milestones", milestones}, {"schedule", "cosine"}}), {"'milestones' has no effect", "\"cosine\""});
  const std::vector<double> at_once = {0, 4};
  check(refused({{"milestones", at_once}, {"schedule", "multistep"}}), {"'milestones' begins with 0", "more than 0"});
  check(refused({{"schedule", "multistep"}}), {"\"multistep\" needs 'milestones'"});
  check(refused({{"power", 2.0}, {"schedule", "linear"}}), {"'power' has no effect", "expected \"polynomial\""});
  check(refused({{"power", 0.0}, {"schedule", "polynomial"}}), {"'power' is 0", "more than 0"});
  check(refused({{"gamma", 0.0}, {"schedule", "exponential"}}), {"'gamma' is 0", "more than 0"});
  check(refused({{"rise", 0.5}}), {"'rise' has no effect with schedule \"constant\"", "\"onecycle\""});
  check(refused({{"rise", 1.5}, {"schedule", "onecycle"}}), {"'rise' is 1.5", "at most 1"});
  check(refused({{"start_divisor", 0.5}, {"schedule", "onecycle"}}), {"'start_divisor' is 0.5", "at least 1"});
  check(refused({{"anneal", "cubic"}, {"schedule", "onecycle"}}), {"'anneal' is \"cubic\"", "\"cosine\", \"linear\""});
  check(refused({{"warmup", 2.0}, {"schedule", "onecycle"}}), {"'warmup' is 2", "lr / start_divisor"});
  check(refused({{"lr_end", 0.01}, {"schedule", "onecycle"}}),
        {"'lr_end' has no effect with schedule \"onecycle\"", "cosine"});
  check(refused({{"momentum", 0.9}, {"optimizer", "adamw"}}),
        {"'momentum' belongs to optimizer \"lars\" or \"muon\" or \"rmsprop\" or \"sgd\"",
         "\"adamw\" has none: 0.0 takes it out"});
  check(refused({{"nesterov", int64_t{1}}, {"optimizer", "adamw"}}),
        {"'nesterov' belongs to optimizer \"lars\" or \"muon\" or \"sgd\""});
  check(refused({{"beta1", 0.5}}), {"'beta1' belongs to optimizer \"adamw\" or \"lamb\"", "\"sgd\" has none"});
  check(refused({{"beta2", 1.0}, {"optimizer", "adamw"}}), {"'beta2' is 1", "less than 1"});
  check(refused({{"epsilon", 0.0}, {"optimizer", "adamw"}}), {"'epsilon' is 0", "more than 0"});
  for (const char* optimizer : {"adamw", "lamb", "rmsprop"}) {  // 0 as a float
    check(refused({{"epsilon", 1e-50}, {"optimizer", optimizer}}), {"'epsilon' is 1e-50", "1.18e-38"});
  }
  check(refused({{"alpha", 1.0}, {"optimizer", "rmsprop"}}), {"'alpha' is 1", "less than 1"});
  check(refused({{"alpha", 0.5}}), {"'alpha' belongs to optimizer \"rmsprop\""});
  check(refused({{"centered", int64_t{2}}, {"optimizer", "rmsprop"}}), {"'centered' is 2"});
  check(refused({{"trust_coefficient", 0.0}, {"optimizer", "lars"}}), {"'trust_coefficient' is 0", "more than 0"});
  check(refused({{"momentum_only_factor", 0.0}, {"optimizer", "muon"}}),
        {"'momentum_only_factor' is 0", "more than 0"});
  check(refused({{"trust_coefficient", 0.5}, {"optimizer", "lamb"}}),
        {"'trust_coefficient' belongs to optimizer \"lars\""});
}

TEST_CASE("operators over replicas refuse arrays that do not agree") {
  const TensorType array = floats({6}), sums = {DataType::Float64, {6}};
  const auto coefficients = [](size_t count) { return with("coefficients", std::vector<double>(count, 1)); };
  check(refusal("arbalest.Combine", {array, array}, coefficients(3)), {"has 3 numbers", "2 inputs"});
  check(refusal("arbalest.Combine", {array, array}), {"coefficients"});
  check(refusal("arbalest.Combine", {array, floats({7})}, coefficients(2)),
        {"input 1 ('terms') is float[7]", "float[6]"});
  check(refusal("arbalest.Combine", {{DataType::Bfloat16, {6}}}, coefficients(1)), {"bfloat16[6]", "float[6]"});
  check(refusal("arbalest.Combine", {floats({2, 3})}, coefficients(1)), {"rank 2", "expected rank 1"});
  Attributes lowered = coefficients(1);
  lowered.set("lowered", int64_t{2});
  check(refusal("arbalest.Combine", {array}, lowered), {"'lowered' is 2", "the 1 outputs"});
  lowered.set("lowered", int64_t{257});
  check(refusal("arbalest.Combine", {array}, lowered, 300), {"257 outputs of type bfloat16", "at most 256"});
  check(refusal("arbalest.Combine", {array}, coefficients(1), 257), {"257 outputs of type float", "at most 256"});
  check(refusal("arbalest.Combine", std::vector<TensorType>(257, array), coefficients(257)),
        {"257 inputs", "at most 256"});

  check(refusal("arbalest.AllReduce", {array, array}), {"1 outputs", "each of 2 inputs"});
  check(refusal("arbalest.AllReduce", {array, sums}, {}, 2), {"input 1 ('arrays') is double[6]", "float[6]"});
  check(refusal("arbalest.AllReduce", {labels(3)}), {"int32[3]", "float"});

  const auto merge = [](int64_t gather, int64_t replicas) {
    return Attributes{{"gather", gather}, {"replicas", replicas}};
  };
  check(refusal("arbalest.MergeStatistics", {floats({5})}), {"float[5]", "as many variances as means"});
  check(refusal("arbalest.MergeStatistics", {array, array}, merge(1, 3)), {"'replicas' is 3", "the 2 inputs"});
  check(refusal("arbalest.MergeStatistics", {array}, merge(0, 2)), {"float[6]", "double[6]"});
  check(refusal("arbalest.MergeStatistics", {sums, sums}, merge(0, 2)), {"2 inputs", "one array of sums"});
  check(refusal("arbalest.MergeStatistics", {sums}, merge(0, 0)), {"'replicas' is 0", "at least 1"});
}

TEST_CASE("updates refuse arrays of other sizes, and a restart without the average") {
  const TensorType array = floats({6});
  check(refusal("arbalest.Sgd", {array, array, array, floats({5})}, {}, 2), {"'average' is float[5]", "float[6]"});
  check(refusal("arbalest.Sgd", {array, array, array, array}, {}, 4), {"'restarted'", "'averaged'"});
  check(refusal("arbalest.Accumulate", {array, floats({5})}, with("scale", 0.5)), {"'sum' is float[5]", "float[6]"});
}

TEST_CASE("moving averages refuse arrays of other sizes, and steps that are none") {
  const TensorType array = floats({6}), progress{DataType::Int64, {2}};
  const auto steps = [](double decay, int64_t every, int64_t period) {
    return Attributes{{"decay", decay}, {"every", every}, {"period", period}};
  };
  const auto refused = [&](const std::vector<TensorType>& inputs, const Attributes& attributes) {
    return refusal("arbalest.MovingAverage", inputs, attributes, 2);
  };
  check(refused({array, floats({5}), progress}, steps(0.9, 1, 1)), {"'average' is float[5]", "float[6]"});
  check(refused({array, array, array}, steps(0.9, 1, 1)), {"'progress' is float[6]", "int64[2]"});
  check(refused({array, array, progress}, steps(1, 1, 1)), {"'decay' is 1", "less than 1"});
  check(refused({array, array, progress}, steps(0.9, 4, 3)), {"'period' is 3", "at least 4"});
}

TEST_CASE("Prefetch needs its source's fields, and outputs that fit them") {
  Attributes prefetch = with("source", "mnist:x");
  prefetch.set("batch", int64_t{2});
  check(refusal("arbalest.Prefetch", {}, prefetch, 2), {"the source's fields are not known"});
  prefetch.set("fields", std::vector<std::string>{"image uint8[3,32,32]", "label int32[] of 10 classes"});
  check(refusal("arbalest.Prefetch", {}, prefetch, 3),
        {"3 outputs (", ") for 2 fields", "are: image uint8[3,32,32], label int32[] of 10 classes"});
  const auto malformed = [&](const std::string& field) {
    prefetch.set("fields", std::vector<std::string>{field});
    return refusal("arbalest.Prefetch", {}, prefetch, 1);
  };
  for (const char* field : {"", "image", "image uint8", "image uint8[3", "image uint8[3,]", "image byte[3]",
                            "label int32[] of ten classes", "label int32[] of 0 classes", "label int32[] 10 classes"}) {
    check(malformed(field), {"found field '" + std::string(field) + "'", "'label int32[] of 10 classes'"});
  }
  check(malformed("x float[0]"), {"field 1 is 'x float[0]'", "extents from 1"});
  check(malformed("x float[4294967296,4294967296]"), {"at most 1099511627776 elements"});
  check(malformed("x float[] of 3 classes"), {"whole numbers where there are classes"});
  check(malformed("9 float[]"), {"a name of letters"});
}

TEST_CASE("sizes that no memory holds are refused where they are made, and none wraps") {
  constexpr int64_t kWraps = 4611686018427387905;  // times 4 bytes: 4
  check(refusal("arbalest.Linear", {floats({2, 4})}, with("units", kWraps)),
        {"output 'h1'", "float[2,4611686018427387905]", "more than any memory holds"});
  Attributes conv = with("kernel_shape", Ints{3, 3});
  conv.set("filters", kWraps);
  check(refusal("arbalest.Conv", {image()}, conv), {"output 'h1'", "more than any memory holds"});
  check(refusal("Flatten", {floats({1 << 20, 1 << 20, 1 << 20, 16})}), {"more than any memory holds"});
  const TensorType w = floats({4, 3, 3, 3});
  constexpr int64_t kMost = INT64_MAX;
  check(refusal("Conv", {image(), w}, with("pads", Ints{kMost, 0, kMost, 0})), {"'pads'", "from 0 to 2^30"});
  check(refusal("Conv", {image(), w}, with("strides", Ints{kMost, 1})), {"'strides'", "from 1 to 2^30"});
  check(refusal("Conv", {image(), w}, with("dilations", Ints{kMost, kMost})), {"'dilations'", "from 1 to 2^30"});
  check(refusal("MaxPool", {image()}, with("kernel_shape", Ints{kMost, kMost})), {"'kernel_shape'", "from 1 to 2^30"});
  conv = with("kernel_shape", Ints{});
  conv.set("filters", int64_t{4});
  for (const std::string& message :
       {refusal("arbalest.Conv", {image()}, conv), refusal("MaxPool", {image()}, with("kernel_shape", Ints{}))}) {
    check(message, {"'kernel_shape' is []", "expected 2 numbers from 1 to 2^30"});
  }
}

}  // namespace errors_test
