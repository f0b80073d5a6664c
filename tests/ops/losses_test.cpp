// SPDX-License-Identifier: Apache-2.0

// Losses: values worked out by hand, labels that take no part, weights as attributes, and what is refused.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "ops/builtin_ops.h"
#include "passes/passes.h"
#include "tests/ops/vectors/run_graph.h"

using namespace arbalest;
using namespace arbalest::test;

namespace losses_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Operand {
  TensorType type;
  std::vector<double> values;
};

Operand floats(const Shape& shape, std::vector<double> values) {
  return {{DataType::Float32, shape}, std::move(values)};
}
Operand whole(DataType type, const Shape& shape, std::vector<double> values) {
  return {{type, shape}, std::move(values)};
}

// The loss as a graph has it: expanded, on the CPU.
double loss(const char* op, const std::vector<Operand>& operands, const Attributes& attributes = {}, int valid = -1) {
  std::vector<TensorType> types;
  std::map<std::string, Logical> inputs;
  for (const Operand& operand : operands) {
    inputs.emplace("input_" + std::to_string(types.size()), Logical{operand.type, operand.values});
    types.push_back(operand.type);
  }
  Case test(builtin_ops().get(op), types, 1, attributes);
  Graph& graph = test.graph;
  graph.outputs = test.get().outputs;
  expand_layers(graph);
  make_runnable(graph);
  const auto device = make_cpu_device();
  const int32_t batch = valid >= 0 ? valid : int32_t(types[0].shape[0]);
  const auto found = run_graph(*device, graph, inputs, {.valid = batch});
  return found.at(graph.values[graph.outputs[0]].name).values.at(0);
}

// dX for a gradient of 1 that flows back into the loss.
std::vector<double> gradient(const char* op, const std::vector<Operand>& operands, int valid = -1) {
  std::vector<TensorType> types = {{DataType::Float32, {}}};
  std::vector<Tensor> inputs = {make_tensor(types[0], {1})};
  for (const Operand& operand : operands) {
    types.push_back(operand.type);
    inputs.push_back(make_tensor(operand.type, operand.values));
  }
  const Case test(builtin_ops().get(op), types, 1, {});
  const auto device = make_cpu_device();
  const StepScalars scalars{.valid = valid >= 0 ? valid : int32_t(operands[0].type.shape[0])};
  return values_of(run_kernel(*device, test.get(), test.output_types(), inputs, {.scalars = scalars}).outputs[0]);
}

std::string refusal(const char* op, const std::vector<TensorType>& types, const Attributes& attributes = {},
                    int outputs = 1) {
  try {
    const Case test(builtin_ops().get(op), types, outputs, attributes);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "accepted";
}

void check_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) CHECK_MESSAGE(message.find(part) != std::string::npos, part, " in ", message);
}

doctest::Approx about(double value) {
  return doctest::Approx(value).epsilon(1e-5);
}

const double kHalf = std::log(2.0);  // −log σ(0)

}  // namespace

TEST_CASE("SigmoidCrossEntropy: missing labels take no part, whatever their type") {
  // Logits of 0 lose log 2 whatever the label; log 3 loses log(4/3) as a positive, log 4 as a negative.
  const Operand logits = floats({2, 2}, {0, std::log(3.0), std::log(3.0), 0});
  const double expected = (kHalf + std::log(4.0 / 3) + std::log(4.0)) / 3;
  const char* op = "arbalest.SigmoidCrossEntropy";
  CHECK(loss(op, {logits, whole(DataType::Int32, {2, 2}, {1, 1, 0, -1})}) == about(expected));
  CHECK(loss(op, {logits, whole(DataType::Uint8, {2, 2}, {1, 1, 0, 255})}) == about(expected));
  CHECK(loss(op, {logits, floats({2, 2}, {1, 1, 0, -1})}) == about(expected));
  CHECK(loss(op, {logits, floats({2, 2}, {1, 1, 0, kNan})}) == about(expected));
  CHECK(loss(op, {logits, floats({2, 2}, {kNan, kNan, kNan, -1})}) == 0);
  CHECK(loss(op, {logits, whole(DataType::Int32, {2, 2}, {1, 1, 0, -1})}, {}, 1) ==
        about((kHalf + std::log(4.0 / 3)) / 2));
  CHECK(loss(op, {logits, whole(DataType::Int32, {2, 2}, {1, 1, 0, -1})}, {}, 0) == 0);
  // A label that is none is seen.
  CHECK(std::isnan(loss(op, {logits, whole(DataType::Int32, {2, 2}, {1, 2, 0, -1})})));
  CHECK(std::isnan(loss(op, {logits, floats({2, 2}, {1, -0.5, 0, -1})})));
}

TEST_CASE("SigmoidCrossEntropy: gradients of missing labels and of padding are 0") {
  const Operand logits = floats({2, 2}, {0, std::log(3.0), std::log(3.0), 0});
  const char* op = "arbalest.SigmoidCrossEntropyGrad";
  const std::vector<double> all = gradient(op, {logits, floats({2, 2}, {1, kNan, 0, -1})});
  CHECK(all[0] == about(-0.25));
  CHECK(all[1] == 0);
  CHECK(all[2] == about(0.375));
  CHECK(all[3] == 0);
  const std::vector<double> first = gradient(op, {logits, floats({2, 2}, {1, 0, 0, 1})}, 1);
  CHECK(first[0] == about(-0.25));
  CHECK(first[1] == about(0.375));
  CHECK(first[2] == 0);
  CHECK(first[3] == 0);
}

TEST_CASE("SigmoidCrossEntropy weighs the positives of each label, as PyTorch's pos_weight does") {
  const Operand logits = floats({2, 2}, {0, 0, 0, 0}), label = whole(DataType::Uint8, {2, 2}, {1, 1, 0, 0});
  const Attributes weights{{"pos_weight", std::vector<double>{3, 0.5}}};
  CHECK(loss("arbalest.SigmoidCrossEntropy", {logits, label}, weights) == about((3 + 0.5 + 1 + 1) * kHalf / 4));
  CHECK(loss("arbalest.SigmoidCrossEntropy", {logits, label, floats({2}, {3, 0.5})}) ==
        about((3 + 0.5 + 1 + 1) * kHalf / 4));
  // A column and a vector are the same.
  CHECK(loss("arbalest.SigmoidCrossEntropy", {floats({2, 1}, {0, 0}), whole(DataType::Int32, {2}, {1, 0})},
             {{"pos_weight", std::vector<double>{3}}}) == about(2 * kHalf));
}

TEST_CASE("SigmoidCrossEntropy keeps its digits where logits are large") {
  const Operand label = whole(DataType::Int32, {2}, {1, 0});
  CHECK(loss("arbalest.SigmoidCrossEntropy", {floats({2}, {-200, 300}), label}) == about(250));
  CHECK(loss("arbalest.SigmoidCrossEntropy", {floats({2}, {20, -20}), label}) == about(std::log1p(std::exp(-20.0))));
}

TEST_CASE("SoftmaxCrossEntropy weighs classes as PyTorch does, in the mean as well") {
  // Logits of 0 and log 3: the first class loses log 4, the second log(4/3).
  const Operand logits = floats({2, 2}, {0, std::log(3.0), 0, std::log(3.0)});
  const Operand label = whole(DataType::Int32, {2}, {0, 1});
  const Attributes weights{{"class_weights", std::vector<double>{1, 3}}};
  const double expected = (std::log(4.0) + 3 * std::log(4.0 / 3)) / 4;
  CHECK(loss("arbalest.SoftmaxCrossEntropy", {logits, label}, weights) == about(expected));
  CHECK(loss("arbalest.SoftmaxCrossEntropy", {logits, label, floats({2}, {1, 3})}) == about(expected));
  CHECK(loss("arbalest.SoftmaxCrossEntropy", {logits, label, floats({2}, {0, 0})}) == 0);
  // Rows of targets: each counts once.
  CHECK(loss("arbalest.SoftmaxCrossEntropy", {logits, floats({2, 2}, {1, 0, 0.5, 0.5})}, weights) ==
        about((std::log(4.0) + 0.5 * std::log(4.0) + 1.5 * std::log(4.0 / 3)) / 2));
  // A class that is closed loses nothing if it is not asked for.
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(loss("arbalest.SoftmaxCrossEntropy", {floats({1, 3}, {0, 0, -infinity}), floats({1, 3}, {0.5, 0.5, 0})}) ==
        about(kHalf));
}

// As PyTorch has it: torch.nn.functional.cross_entropy(logits, label, weight, ignore_index=-100, reduction="mean").
TEST_CASE("SoftmaxCrossEntropy passes over labels that are ignored, in the mean as well") {
  const char* op = "arbalest.SoftmaxCrossEntropy";
  const Operand logits = floats({3, 2}, {0, std::log(3.0), 5, -5, 0, std::log(3.0)});
  const Attributes ignores{{"ignore_index", int64_t{-100}}};
  const double mean = (std::log(4.0) + std::log(4.0 / 3)) / 2;
  CHECK(loss(op, {logits, whole(DataType::Int32, {3}, {0, -100, 1})}, ignores) == about(mean));
  CHECK(loss(op, {logits, whole(DataType::Int32, {3}, {-100, -100, -100})}, ignores) == 0);
  CHECK(std::isnan(loss(op, {logits, whole(DataType::Int32, {3}, {0, -1, 1})}, ignores)));
  CHECK(std::isnan(loss(op, {logits, whole(DataType::Int32, {3}, {0, -100, 1})})));
  // Labels beyond int32 are none of the classes, and none that is ignored.
  const double around = double(int64_t{1} << 32);
  for (const double far : {around + 1, around - 100, -around + 1, -around - 100}) {
    CHECK(std::isnan(loss(op, {logits, whole(DataType::Int64, {3}, {0, far, 1})}, ignores)));
  }
  // A class may be what is ignored, and the others keep their weights.
  const Attributes weighted{{"ignore_index", int64_t{1}}, {"class_weights", std::vector<double>{2, 5}}};
  CHECK(loss(op, {logits, whole(DataType::Int32, {3}, {0, 1, 1})}, weighted) == about(std::log(4.0)));
  check_parts(refusal(op, {{DataType::Float32, {4, 3}}, {DataType::Float32, {4, 3}}}, ignores),
              {"'ignore_index' is for labels that are classes"});
  for (const std::vector<int64_t>& labels : {std::vector<int64_t>{1, 2}, {int64_t{1} << 40}}) {
    check_parts(refusal(op, {{DataType::Float32, {4, 3}}, {DataType::Int32, {4}}}, {{"ignore_index", labels}}),
                {"'ignore_index' is [", "expected one label, an int32"});
  }
}

TEST_CASE("SoftmaxCrossEntropy takes a label for each place, and classes along the axis that is named") {
  const char* op = "arbalest.SoftmaxCrossEntropy";
  const double l = std::log(3.0);
  // Two samples of three places with two classes, (0, log 3) but for one place, which is (5, −5).
  const Operand tokens = floats({2, 3, 2}, {0, l, 0, l, 5, -5, 0, l, 0, l, 0, l});
  const Operand pixels = floats({2, 2, 3}, {0, 0, 5, l, l, -5, 0, 0, 0, l, l, l});
  const Operand volume = floats({2, 2, 3, 1, 1}, pixels.values);
  const std::vector<double> labels = {0, 1, 255, 1, 1, 1};
  const double mean = (std::log(4.0) + 4 * std::log(4.0 / 3)) / 5;
  const Attributes last{{"axis", int64_t{-1}}, {"ignore_index", int64_t{255}}};
  const Attributes ignores{{"ignore_index", int64_t{255}}};
  for (const DataType type : {DataType::Int32, DataType::Int64, DataType::Uint8}) {
    INFO(name_of(type));
    CHECK(loss(op, {tokens, whole(type, {2, 3}, labels)}, last) == about(mean));
    CHECK(loss(op, {pixels, whole(type, {2, 3}, labels)}, ignores) == about(mean));
    CHECK(loss(op, {volume, whole(type, {2, 3, 1, 1}, labels)}, ignores) == about(mean));
    CHECK(loss("arbalest.Accuracy", {pixels, whole(type, {2, 3}, labels)}, ignores) == about(4.0 / 5));
    CHECK(loss("arbalest.Accuracy", {tokens, whole(type, {2, 3}, labels)}, last) == about(4.0 / 5));
  }
  // All places of the one valid sample count, and none of the other.
  CHECK(loss(op, {tokens, whole(DataType::Int32, {2, 3}, labels)}, last, 1) ==
        about((std::log(4.0) + std::log(4.0 / 3)) / 2));
  Attributes weighted = ignores;
  weighted.set("class_weights", std::vector<double>{1, 3});
  CHECK(loss(op, {pixels, whole(DataType::Int32, {2, 3}, labels)}, weighted) ==
        about((std::log(4.0) + 12 * std::log(4.0 / 3)) / 13));
  // Targets of each class, along the same axis.
  CHECK(loss(op, {floats({1, 2, 2}, {0, 0, l, l}), floats({1, 2, 2}, {1, 0.5, 0, 0.5})}) ==
        about((std::log(4.0) + 0.5 * std::log(4.0) + 0.5 * std::log(4.0 / 3)) / 2));
}

TEST_CASE("losses of classes refuse labels that are not one for each place") {
  const char* op = "arbalest.SoftmaxCrossEntropy";
  const TensorType logits{DataType::Float32, {4, 5, 7}};
  check_parts(
      refusal(op, {logits, {DataType::Int32, {4, 5}}}),
      {"'label' is int32[4,5]; expected int32[4,7]", "float[4,5,7], whose classes lie along axis 1", "axis = -1 fits"});
  check_parts(refusal(op, {logits, {DataType::Int32, {4, 7}}}, {{"axis", int64_t{-1}}}), {"axis = 1 fits"});
  check_parts(refusal(op, {logits, {DataType::Int32, {4}}}), {"'label' is int32[4]; expected int32[4,7]"});
  check_parts(refusal(op, {logits, {DataType::Bool, {4, 7}}}), {"'label' is bool[4,7]; expected int32[4,7]"});
  for (const int64_t axis : {0, 3, -3}) {
    check_parts(refusal(op, {logits, {DataType::Int32, {4, 7}}}, {{"axis", axis}}),
                {"attribute 'axis' is", "expected an axis of input 'logits', float[4,5,7], after that of the samples"});
  }
  check_parts(refusal("arbalest.Accuracy", {{DataType::Float32, {4}}, {DataType::Int32, {4}}}),
              {"'logits' is float[4]; expected rows of classes"});
}

TEST_CASE("a loss says what it is a mean over") {
  const auto outputs = [](const char* op, const std::vector<Operand>& operands, int count, const Attributes& attributes,
                          int valid) {
    std::vector<TensorType> types;
    std::vector<Tensor> inputs;
    for (const Operand& operand : operands) {
      types.push_back(operand.type);
      inputs.push_back(make_tensor(operand.type, operand.values));
    }
    const Case test(builtin_ops().get(op), types, count, attributes);
    const auto device = make_cpu_device();
    std::vector<double> found;
    for (const Tensor& output :
         run_kernel(*device, test.get(), test.output_types(), inputs, {.scalars = {.valid = valid}}).outputs) {
      found.push_back(output.type.dtype == DataType::Token ? -1 : values_of(output)[0]);
    }
    return found;
  };
  const Operand logits = floats({4, 2}, {3, 0, 3, 0, 0, 3, 0, 3}), label = whole(DataType::Int32, {4}, {0, 7, 1, 0});
  const Attributes ignores{{"ignore_index", int64_t{7}}};
  const auto softmax = outputs("arbalest.SoftmaxCrossEntropy", {logits, label, floats({2}, {0.5, 3})}, 4, ignores, 4);
  CHECK(softmax[1] == about(2.0 / 3));
  CHECK(softmax[2] == about(4));
  CHECK(softmax[3] == 3);
  CHECK(outputs("arbalest.SoftmaxCrossEntropy", {logits, label}, 4, ignores, 2)[2] == 1);
  CHECK(outputs("arbalest.Accuracy", {logits, label}, 2, ignores, 4) == std::vector<double>{double(2.0f / 3), 3});
  // Rows whose class weighs 0 have a loss by smoothing: their sum is 2 · mean, and they add nothing to the weight.
  // Row 1: targets 0 · … and 3 · 0.15, of logits 3 and 0.
  const Operand closed = floats({2, 2}, {3, 0, 3, 0}), none = whole(DataType::Int32, {2}, {0, 0});
  const Attributes smoothing{{"label_smoothing", 0.3}};
  const auto weightless = outputs("arbalest.SoftmaxCrossEntropy", {closed, none, floats({2}, {0, 3})}, 3, smoothing, 2);
  CHECK(weightless[0] == about(0.45 * std::log(1 + std::exp(3.0))));
  CHECK(weightless[2] == -2);
  // If every sample weighs 1, the output for the weight is a token.
  CHECK(outputs("arbalest.SoftmaxCrossEntropy", {logits, whole(DataType::Int32, {4}, {0, 1, 1, 0})}, 4, {}, 4)[2] ==
        -1);
  CHECK(outputs("arbalest.Accuracy", {logits, whole(DataType::Int32, {4}, {0, 1, 1, 0})}, 2, {}, 4)[1] == -1);
  CHECK(std::isnan(outputs("arbalest.Accuracy", {logits, label}, 1, {}, 4)[0]));
  // In samples: three of four labels.
  const Operand marks = whole(DataType::Int32, {4, 2}, {1, 0, -1, 1, 0, 0, 1, 1});
  CHECK(outputs("arbalest.SigmoidCrossEntropy", {logits, marks}, 2, {}, 2)[1] == 1.5);
}

TEST_CASE("MeanSquaredError and L1Loss are means over the elements of valid samples") {
  const Operand x = floats({2, 2}, {1, 2, 3, 4}), t = floats({2, 2}, {1, 0, 6, 4});
  CHECK(loss("arbalest.MeanSquaredError", {x, t}) == about((4 + 9) / 4.0));
  CHECK(loss("arbalest.L1Loss", {x, t}) == about(5 / 4.0));
  CHECK(loss("arbalest.MeanSquaredError", {x, t}, {}, 1) == about(2));
  CHECK(loss("arbalest.L1Loss", {x, t}, {}, 1) == about(1));
  CHECK(gradient("arbalest.L1LossGrad", {x, t}) == std::vector<double>{0, 0.25, -0.25, 0});
  CHECK(gradient("arbalest.MeanSquaredErrorGrad", {x, t}) == std::vector<double>{0, 1, -1.5, 0});
  CHECK(std::isnan(loss("arbalest.MeanSquaredError", {x, floats({2, 2}, {1, 0, kNan, 4})})));
  CHECK(std::isnan(gradient("arbalest.L1LossGrad", {x, floats({2, 2}, {1, 0, kNan, 4})})[2]));
}

TEST_CASE("losses refuse targets and weights that do not fit") {
  const TensorType logits{DataType::Float32, {4, 3}}, classes{DataType::Int32, {4}}, other{DataType::Float32, {4, 2}};
  const TensorType scalar{DataType::Float32, {}}, bytes{DataType::Int64, {4, 3}};
  const auto weights = [](const char* name, std::vector<double> values) {
    Attributes attributes;
    attributes.set(name, std::move(values));
    return attributes;
  };
  check_parts(refusal("arbalest.SigmoidCrossEntropy", {logits, other}),
              {"'label' is float[4,2]", "expected float, int32 or uint8", "'logits', (4, 3)"});
  check_parts(refusal("arbalest.SigmoidCrossEntropy", {logits, bytes}), {"'label' is int64[4,3]"});
  check_parts(refusal("arbalest.SigmoidCrossEntropy", {scalar, scalar}), {"'logits' is a scalar"});
  check_parts(refusal("arbalest.SigmoidCrossEntropy", {logits, logits}, weights("pos_weight", {1, 2})),
              {"'pos_weight' has 2 numbers", "each of the 3 labels"});
  check_parts(refusal("arbalest.SigmoidCrossEntropy", {logits, logits}, weights("pos_weight", {1, 2, -1})),
              {"'pos_weight' holds -1"});
  check_parts(refusal("arbalest.MeanSquaredError", {logits, classes}), {"'target' is int32[4]", "expected float"});
  check_parts(refusal("arbalest.L1Loss", {logits, other}), {"'target' is float[4,2]", "'prediction', (4, 3)"});
  check_parts(refusal("arbalest.SoftmaxCrossEntropy", {logits, other}), {"'label' is float[4,2]", "each class"});
  check_parts(refusal("arbalest.SoftmaxCrossEntropy", {logits, logits}, {}, 2), {"'accuracy' needs classes"});
  check_parts(refusal("arbalest.SoftmaxCrossEntropy", {logits, classes}, weights("class_weights", {1, 2})),
              {"'class_weights' has 2 numbers", "each of the 3 classes"});
  check_parts(refusal("arbalest.SoftmaxCrossEntropy", {logits, classes, {DataType::Float32, {3}}},
                      weights("class_weights", {1, 2, 3})),
              {"'class_weights' are given twice"});
  check_parts(refusal("arbalest.SoftmaxCrossEntropy", {logits, classes}, weights("class_weights", {0, 1e-60, 0})),
              {"all 3 numbers of attribute 'class_weights' are 0", "expected one above 0"});
  CHECK(refusal("arbalest.SoftmaxCrossEntropy", {logits, classes}, weights("class_weights", {0, 1, 0})) == "accepted");
}

TEST_CASE("ONNX's losses of classes refuse what does not fit, and no class is counted from the end") {
  const TensorType scores{DataType::Float32, {2, 3, 4}}, classes{DataType::Int32, {2, 4}};
  for (const char* op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    CHECK(refusal(op, {scores, classes}) == "accepted");
    check_parts(refusal(op, {{DataType::Float32, {3}}, classes}), {"is float[3]", "expected (samples, classes, …)"});
    check_parts(refusal(op, {scores, scores}), {"is float[2,3,4]", "expected int32 or int64"});
    check_parts(refusal(op, {scores, {DataType::Int32, {2, 3}}}), {"is int32[2,3]", "int32[2,4]", "float[2,3,4]"});
    check_parts(refusal(op, {scores, classes, {DataType::Float32, {4}}}), {"is float[4]", "float[3]"});
    check_parts(refusal(op, {scores, classes}, {{"ignore_index", int64_t{1} << 40}}), {"'ignore_index'", "an int32"});
  }
  const Operand x = floats({2, 2}, {-1, -2, -3, -4});
  CHECK(loss("NegativeLogLikelihoodLoss", {x, whole(DataType::Int64, {2}, {0, 1})}) == 2.5);
  for (const double odd : {-1.0, 2.0}) {
    CHECK_THROWS_AS(loss("NegativeLogLikelihoodLoss", {x, whole(DataType::Int64, {2}, {0, odd})}), RunError);
    CHECK(loss("NegativeLogLikelihoodLoss", {x, whole(DataType::Int64, {2}, {0, odd})},
               {{"ignore_index", int64_t(odd)}}) == 1);
  }
  // As PyTorch has it, nothing is left to take a mean of.
  CHECK(std::isnan(
      loss("NegativeLogLikelihoodLoss", {x, whole(DataType::Int32, {2}, {1, 1})}, {{"ignore_index", int64_t{1}}})));
  const double least = -std::numeric_limits<double>::infinity();
  CHECK(loss("NegativeLogLikelihoodLoss", {floats({2, 2}, {least, -2, -3, -4}), whole(DataType::Int32, {2}, {-1, 1})},
             {{"ignore_index", int64_t{-1}}}) == 4);
}

}  // namespace losses_test
