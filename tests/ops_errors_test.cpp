// Operands and attributes that do not fit are refused with where, what was found and what was expected.

#include <doctest/doctest.h>

#include "tests/ops_harness.h"

using namespace arbalest;
using namespace arbalest::test;

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

TEST_CASE("windows need four pads, positive strides and no automatic padding") {
  const TensorType w = floats({4, 3, 3, 3});
  check(refusal("Conv", {image(), w}, with("auto_pad", "SAME_UPPER")), {"'auto_pad'", "NOTSET"});
  check(refusal("Conv", {image(), w}, with("pads", Ints{1, 1})), {"'pads' is [1, 1]", "4 numbers of at least 0"});
  check(refusal("Conv", {image(), w}, with("strides", Ints{0, 1})), {"'strides' is [0, 1]", "2 numbers of at least 1"});
  Attributes pool = with("kernel_shape", Ints{2, 2});
  pool.set("pads", Ints{2, 2, 2, 2});
  check(refusal("MaxPool", {image()}, pool), {"'pads' holds 2", "less than the window's 2"});
}

TEST_CASE("types and ranks are checked") {
  check(refusal("Add", {image(), floats({2, 3, 8, 1})}), {"'B' is float[2,3,8,1]", "float[2,3,8,8]"});
  check(refusal("Relu", {{DataType::Uint8, {2}}}), {"'X' is uint8[2]", "float"});
  check(refusal("GlobalAveragePool", {floats({2, 3})}), {"rank 2", "expected rank 4"});
  check(refusal("Flatten", {image()}, with("axis", int64_t{5})), {"'axis' is 5", "-4 to 4"});
}

TEST_CASE("Gemm refuses matrices that do not meet") {
  check(refusal("Gemm", {floats({2, 3}), floats({4, 5})}), {"3 columns meet 4 rows"});
  check(refusal("Gemm", {floats({2, 3}), floats({3, 5}), floats({2})}), {"'C' is float[2]", "float[5]"});
  check(refusal("Gemm", {floats({2, 3}), floats({3, 5})}, with("transA", int64_t{2})), {"'transA' is 2", "0 or 1"});
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
}

TEST_CASE("Augment refuses crops beyond the padded image and a mean for other channels") {
  check(refusal("arbalest.Augment", {pixels()}, with("mean", std::vector<double>{1, 2})),
        {"'mean' has 2 numbers", "3 channels"});
  check(refusal("arbalest.Augment", {pixels()}, with("std", std::vector<double>{0})), {"'std' holds 0", "more than 0"});
  check(refusal("arbalest.Augment", {pixels()}, with("crop", Ints{9, 8})), {"'crop' is [9, 8]", "1 to 8"});
  check(refusal("arbalest.Augment", {image()}), {"'image' is float[2,3,8,8]", "uint8[N,C,H,W]"});
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

TEST_CASE("Prefetch needs its source's sample shape") {
  Attributes prefetch = with("source", "mnist:x");
  prefetch.set("batch", int64_t{2});
  check(refusal("arbalest.Prefetch", {}, prefetch, 2), {"the source's sample shape is not known"});
}
