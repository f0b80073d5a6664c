// SPDX-License-Identifier: Apache-2.0

// Semantics that users know from PyTorch and ONNX, and messages: tests that samples cannot express.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"
#include "ops/optim/train.h"

using namespace arbalest;
using namespace arbalest::test;

namespace semantics_test {
namespace {

// Runs an operator on the CPU in float (or what the tensors are); returns its outputs' values, in memory order.
std::vector<std::vector<double>> run(const char* name, const std::vector<Tensor>& inputs, int outputs,
                                     const Attributes& attributes = {}, const StepScalars& scalars = {},
                                     const char* node = "under_test") {
  std::vector<TensorType> types;
  for (const Tensor& tensor : inputs) types.push_back(tensor.type);
  const Case test(builtin_ops().get(name), types, outputs, attributes, node);
  const auto device = make_cpu_device();
  const Outcome outcome = run_kernel(*device, test.get(), test.output_types(), inputs, {.scalars = scalars});
  CHECK(outcome.fault == "");
  std::vector<std::vector<double>> values;
  for (const Tensor& tensor : outcome.outputs) values.push_back(values_of(tensor));
  return values;
}

Tensor floats(const Shape& shape, const std::vector<double>& values) {
  return make_tensor({DataType::Float32, shape}, values);
}
Tensor channels_last(const Shape& shape, const std::vector<double>& in_memory) {
  return make_tensor(TensorType{DataType::Float32, shape}.in(Layout::ChannelsLast), in_memory);
}
Tensor labels(const std::vector<double>& values) {
  return make_tensor({DataType::Int32, {int64_t(values.size())}}, values);
}

void check_values(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-5));
}

Node train_node(const Attributes& attributes) {
  Node node;
  node.op = &builtin_ops().get("arbalest.Train");
  node.name = "trained";
  node.attributes = attributes;
  return node;
}

}  // namespace

TEST_CASE("batch norm keeps running statistics as PyTorch does: unbiased variance, momentum weighs the batch") {
  // Two channels over four rows: (1, 2, 3, 4) and (10, 10, 10, 14).
  const Tensor x = floats({4, 2}, {1, 10, 2, 10, 3, 10, 4, 14});
  const auto out = run("arbalest.BatchNormTraining",
                       {x, floats({2}, {1, 2}), floats({2}, {0, 1}), floats({2}, {0, 0}), floats({2}, {1, 1})}, 5,
                       {{"momentum", 0.1}, {"epsilon", 1e-5}});
  check_values(out[1], {0.25, 1.1});                           // 0.9·0 + 0.1·mean
  check_values(out[2], {0.9 + 0.1 * 5.0 / 3, 0.9 + 0.1 * 4});  // 0.9·1 + 0.1·unbiased variance
  check_values(out[3], {2.5, 11});
  check_values(out[4], {1 / std::sqrt(1.25 + 1e-5), 1 / std::sqrt(3 + 1e-5)});
  CHECK(out[0][0] == doctest::Approx(-1.5 / std::sqrt(1.25 + 1e-5)));
  CHECK(out[0][7] == doctest::Approx(2 * 3 / std::sqrt(3 + 1e-5) + 1));
}

TEST_CASE("batch norm turns into its inference form in place") {
  const TensorType x{DataType::Float32, {2, 3, 4, 4}}, c{DataType::Float32, {3}};
  Case test(builtin_ops().get("arbalest.BatchNormTraining"), {x, c, c, c, c}, 5, {{"relu", int64_t{1}}});
  test.get().op->for_inference(test.graph, test.node);
  CHECK(test.get().op->name == "BatchNormInference");
  CHECK(test.get().outputs.size() == 1);
  CHECK(int_attribute(test.get(), "relu") == 1);
  infer(test.graph, test.node);
}

TEST_CASE("a sample is augmented the same whatever batch it comes in") {
  const int64_t channels = 3, size = 8, image = channels * size * size;
  std::vector<double> pixels;
  for (int64_t i = 0; i < 6 * image; ++i) pixels.push_back(double(i * 37 % 251));
  const Attributes attributes{{"pad", int64_t{2}}, {"flip", int64_t{1}}};
  const auto batch = [&](int64_t first, int64_t count, StepScalars scalars, const char* node = "x") {
    scalars.position = uint64_t(100 + first);
    const std::vector<double> part(pixels.begin() + first * image, pixels.begin() + (first + count) * image);
    return run("arbalest.Augment", {make_tensor({DataType::Uint8, {count, channels, size, size}}, part)}, 1, attributes,
               scalars, node)[0];
  };
  const StepScalars scalars{.seed = 3, .epoch = 5};
  const std::vector<double> whole = batch(0, 6, scalars);
  std::vector<double> parts = batch(0, 2, scalars);
  for (const double value : batch(2, 4, scalars)) parts.push_back(value);
  CHECK(whole == parts);
  CHECK(whole != batch(0, 6, {.seed = 3, .epoch = 6}));
  CHECK(whole != batch(0, 6, {.seed = 4, .epoch = 5}));
  CHECK(whole != batch(0, 6, scalars, "another"));
}

TEST_CASE("augmentation crops everywhere in the padded image, mirrors half, and is centred for validation") {
  // One bright pixel in the middle of 3×3, padding 1: it is seen at every place of the crop.
  std::vector<double> pixels(400 * 9, 0);
  for (size_t n = 0; n < 400; ++n) pixels[n * 9 + 4] = 255;
  const Tensor images = make_tensor({DataType::Uint8, {400, 1, 3, 3}}, pixels);
  const auto random = run("arbalest.Augment", {images}, 1, {{"pad", int64_t{1}}})[0];
  std::vector<int> seen(9, 0);
  for (size_t i = 0; i < random.size(); ++i) seen[i % 9] += random[i] == 1 ? 1 : 0;
  for (const int count : seen) CHECK(count > 20);  // 44 expected of 400

  Case test(builtin_ops().get("arbalest.Augment"), {images.type}, 1, {{"pad", int64_t{1}}, {"flip", int64_t{1}}});
  test.get().op->for_inference(test.graph, test.node);
  CHECK(run("arbalest.Augment", {images}, 1, test.get().attributes)[0][4] == 1);

  const Tensor left = make_tensor({DataType::Uint8, {400, 1, 1, 2}}, [] {
    std::vector<double> values(800, 0);
    for (size_t n = 0; n < 400; ++n) values[2 * n] = 255;
    return values;
  }());
  const auto mirrored = run("arbalest.Augment", {left}, 1, {{"flip", int64_t{1}}})[0];
  int count = 0;
  for (size_t n = 0; n < 400; ++n) count += mirrored[2 * n + 1] == 1 ? 1 : 0;
  CHECK(count > 150);
  CHECK(count < 250);
}

TEST_CASE("normalisation is of pixels in 0 to 1, and padding is 0 after it") {
  const Tensor image = make_tensor({DataType::Uint8, {1, 2, 1, 1}}, {255, 51});
  const auto y = run("arbalest.Augment", {image}, 1,
                     {{"mean", std::vector<double>{0.5, 0.1}},
                      {"std", std::vector<double>{0.25, 0.5}},
                      {"pad", int64_t{1}},
                      {"crop", std::vector<int64_t>{3, 3}}})[0];
  std::vector<double> expected(18, 0);
  expected[8] = 2, expected[9] = 0.2;
  check_values(y, expected);
}

TEST_CASE("learning-rate schedules") {
  const auto rate = [](Attributes attributes, double epoch, double total = 10) {
    attributes.set("lr", 0.1);
    return LearningRate(train_node(attributes)).rate(epoch, total);
  };
  CHECK(rate({}, 7) == doctest::Approx(0.1));
  const Attributes step{{"schedule", "step"}, {"step_size", 3.0}, {"gamma", 0.5}};
  CHECK(rate(step, 2.99) == doctest::Approx(0.1));
  CHECK(rate(step, 3) == doctest::Approx(0.05));
  CHECK(rate(step, 6.5) == doctest::Approx(0.025));
  const Attributes tenths{{"lr", 0.1}, {"schedule", "step"}, {"step_size", 0.1}, {"gamma", 0.5}};
  for (int drops = 0; drops < 30; ++drops) {  // 12 tenths of an epoch are 11.999… times 0.1 in doubles
    CAPTURE(drops);
    CHECK(rate(tenths, drops / 10.0) == doctest::Approx(0.1 * std::pow(0.5, drops)).epsilon(1e-9));
    CHECK(LearningRate(train_node(tenths)).drops(drops / 10.0) == drops);
  }
  const Attributes multistep{{"schedule", "multistep"}, {"milestones", std::vector<double>{4, 6}}};
  CHECK(rate(multistep, 3.999) == doctest::Approx(0.1));
  CHECK(rate(multistep, 4) == doctest::Approx(0.01));
  CHECK(rate(multistep, 9) == doctest::Approx(0.001));
  const Attributes cosine{{"schedule", "cosine"}, {"lr_end", 0.02}};
  CHECK(rate(cosine, 0) == doctest::Approx(0.1));
  CHECK(rate(cosine, 5) == doctest::Approx(0.06));
  CHECK(rate(cosine, 10) == doctest::Approx(0.02));
  CHECK(rate(cosine, 12) == doctest::Approx(0.02));
  const Attributes linear{{"schedule", "linear"}, {"epochs", 20.0}, {"warmup", 10.0}, {"warmup_from", 0.5}};
  CHECK(rate(linear, 0) == doctest::Approx(0.05));
  CHECK(rate(linear, 5) == doctest::Approx(0.075));
  CHECK(rate(linear, 10) == doctest::Approx(0.1));
  CHECK(rate(linear, 15) == doctest::Approx(0.05));
  CHECK(rate(linear, 20) == doctest::Approx(0).epsilon(1e-9));
}

TEST_CASE("polynomial, exponential and one-cycle schedules") {
  const auto rate = [](Attributes attributes, double epoch, double total = 10) {
    attributes.set("lr", 0.1);
    return LearningRate(train_node(attributes)).rate(epoch, total);
  };
  const Attributes polynomial{{"schedule", "polynomial"}, {"power", 2.0}, {"lr_end", 0.02}, {"warmup", 2.0}};
  CHECK(rate(polynomial, 1, 12) == doctest::Approx(0.05));
  CHECK(rate(polynomial, 2, 12) == doctest::Approx(0.1));
  CHECK(rate(polynomial, 7, 12) == doctest::Approx(0.02 + 0.08 * 0.25));
  CHECK(rate(polynomial, 12, 12) == doctest::Approx(0.02));
  CHECK(rate(polynomial, 20, 12) == doctest::Approx(0.02));
  CHECK(rate({{"schedule", "polynomial"}}, 2.5) == doctest::Approx(0.075));  // a power of 1: linear
  const Attributes exponential{{"schedule", "exponential"}, {"gamma", 0.5}, {"warmup", 1.0}, {"warmup_from", 0.25}};
  CHECK(rate(exponential, 0) == doctest::Approx(0.025));
  CHECK(rate(exponential, 1) == doctest::Approx(0.1));
  CHECK(rate(exponential, 2.5) == doctest::Approx(0.1 * std::pow(0.5, 1.5)));
  // As PyTorch's OneCycleLR: from 0.1 / 25 to 0.1 in 30 %, then to 0.1 / 25 / 10⁴, each half a cosine.
  const Attributes cycle{{"schedule", "onecycle"}};
  CHECK(rate(cycle, 0) == doctest::Approx(0.004));
  CHECK(rate(cycle, 1) == doctest::Approx(0.1 + (0.004 - 0.1) * (1 + std::cos(std::acos(-1.0) / 3)) / 2));
  CHECK(rate(cycle, 1.5) == doctest::Approx(0.052));
  CHECK(rate(cycle, 3) == doctest::Approx(0.1));
  CHECK(rate(cycle, 6.5) == doctest::Approx((0.1 + 4e-7) / 2));
  CHECK(rate(cycle, 10) == doctest::Approx(4e-7));
  CHECK(rate(cycle, 11) == doctest::Approx(4e-7));
  const Attributes triangle{{"schedule", "onecycle"}, {"anneal", "linear"},  {"rise", 0.5},
                            {"start_divisor", 4.0},   {"end_divisor", 10.0}, {"epochs", 8.0}};
  CHECK(rate(triangle, 0, 20) == doctest::Approx(0.025));
  CHECK(rate(triangle, 1, 20) == doctest::Approx(0.025 + 0.075 / 4));
  CHECK(rate(triangle, 4, 20) == doctest::Approx(0.1));
  CHECK(rate(triangle, 6, 20) == doctest::Approx((0.1 + 0.0025) / 2));
  CHECK(rate(triangle, 8, 20) == doctest::Approx(0.0025));
  CHECK(rate({{"schedule", "onecycle"}, {"rise", 1.0}}, 10) == doctest::Approx(0.1));
  CHECK(rate({{"schedule", "onecycle"}, {"rise", 0.0}}, 0) == doctest::Approx(0.1));
}

TEST_CASE("SGD steps as PyTorch's") {
  // Two steps of lr 0.1, momentum 0.9, weight decay 0.01 from w = 1 with gradient 0.5: v = 0.51, then 0.459 + 0.50949….
  const Attributes attributes{{"momentum", 0.9}, {"weight_decay", 0.01}};
  const StepScalars scalars{.learning_rate = 0.1f};
  const auto first =
      run("arbalest.Sgd", {floats({1}, {0.5}), floats({1}, {1}), floats({1}, {0})}, 2, attributes, scalars);
  check_values(first[0], {0.949});
  check_values(first[1], {0.51});
  const auto second =
      run("arbalest.Sgd", {floats({1}, {0.5}), floats({1}, {0.949}), floats({1}, {0.51})}, 2, attributes, scalars);
  check_values(second[1], {0.9 * 0.51 + 0.50949});
  check_values(second[0], {0.949 - 0.1 * 0.96849});
  Attributes nesterov = attributes;
  nesterov.set("nesterov", int64_t{1});
  const auto jump = run("arbalest.Sgd", {floats({1}, {0.5}), floats({1}, {1}), floats({1}, {0})}, 2, nesterov, scalars);
  check_values(jump[0], {1 - 0.1 * (0.51 + 0.9 * 0.51)});
}

// Worked out by hand from the paper's Algorithm 2: with a constant gradient both corrected moments stay g and g².
TEST_CASE("AdamW steps as its authors say") {
  const Attributes attributes{{"weight_decay", 0.1}, {"epsilon", 0.5}};
  const auto first = run("arbalest.Adamw", {floats({1}, {2}), floats({1}, {1}), floats({1}, {0}), floats({1}, {0})}, 3,
                         attributes, {.learning_rate = 0.1f});
  check_values(first[0], {1 - 0.1 * 0.1 - 0.1 * 2 / 2.5});
  check_values(first[1], {0.2});
  check_values(first[2], {0.004});
  const auto second =
      run("arbalest.Adamw", {floats({1}, {2}), floats({1}, {0.91}), floats({1}, {0.2}), floats({1}, {0.004})}, 3,
          attributes, {.learning_rate = 0.1f, .updates = 1});
  check_values(second[0], {0.91 - 0.1 * 0.1 * 0.91 - 0.1 * 2 / 2.5});
  check_values(second[1], {0.38});
  check_values(second[2], {0.007996});
}

TEST_CASE("losses and accuracy count the valid samples only") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor logits = floats({3, 2}, {0, 0, std::log(3), 0, nan, nan});
  const Tensor label = labels({0, 0, 9});
  const StepScalars two{.valid = 2}, three{.valid = 3}, none{.valid = 0};
  const auto loss = [&](const StepScalars& scalars) {
    return run("arbalest.SoftmaxCrossEntropy", {logits, label}, 1, {}, scalars)[0][0];
  };
  CHECK(loss(two) == doctest::Approx((std::log(2) - std::log(0.75)) / 2));
  CHECK(loss(none) == 0);
  CHECK(std::isnan(loss(three)));
  const auto gradient = run("arbalest.SoftmaxCrossEntropyGrad", {floats({}, {2}), logits, label}, 1, {}, two)[0];
  check_values(gradient, {-0.5, 0.5, -0.25, 0.25, 0, 0});
  CHECK(std::isnan(run("arbalest.SoftmaxCrossEntropyGrad", {floats({}, {2}), logits, label}, 1, {}, three)[0][4]));
  CHECK(run("arbalest.Accuracy", {logits, label}, 1, {}, two)[0][0] == 1);
  CHECK(run("arbalest.Accuracy", {logits, labels({0, 0, 1})}, 1, {}, three)[0][0] == doctest::Approx(2.0 / 3));
  CHECK(std::isnan(run("arbalest.Accuracy", {logits, label}, 1, {}, three)[0][0]));  // there is no class 9
  CHECK(run("arbalest.Accuracy", {logits, label}, 1, {}, none)[0][0] == 0);
}

TEST_CASE("accuracy breaks ties by the lower index, and NaN is never right") {
  const StepScalars one{.valid = 1};
  const auto right = [&](std::vector<double> row, double label, int64_t top_k) {
    return run("arbalest.Accuracy", {floats({1, 4}, row), labels({label})}, 1, {{"top_k", top_k}}, one)[0][0];
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(right({1, 1, 0, 0}, 0, 1) == 1);
  CHECK(right({1, 1, 0, 0}, 1, 1) == 0);
  CHECK(right({1, 1, 0, 0}, 1, 2) == 1);
  CHECK(right({nan, 1, 0, 0}, 0, 4) == 0);
  CHECK(right({nan, 1, 0, 0}, 1, 1) == 0);
  CHECK(right({nan, 1, 0, 0}, 1, 2) == 1);
  CHECK(std::isnan(right({1, 0, 0, 0}, -1, 4)));
}

TEST_CASE("a tally weighs metrics by valid samples and ignores a batch of padding") {
  const Tensor state = make_tensor({DataType::Float64, {3}}, {10, 1, 2});
  const Tensor a = floats({}, {0.5}), nan = floats({}, {std::numeric_limits<double>::quiet_NaN()});
  check_values(run("arbalest.Tally", {state, a, a}, 1, {}, {.valid = 4})[0], {14, 3, 4});
  check_values(run("arbalest.Tally", {state, a, nan}, 1, {}, {.valid = 0})[0], {10, 1, 2});
}

TEST_CASE("max pool: NaN wins, the first of equal maxima gets the gradient") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Attributes window{{"kernel_shape", std::vector<int64_t>{2, 2}}};
  CHECK(std::isnan(run("MaxPool", {floats({1, 1, 2, 2}, {1, nan, 3, 2})}, 1, window)[0][0]));
  const Tensor x = floats({1, 1, 2, 2}, {1, 5, 5, 2}), y = floats({1, 1, 1, 1}, {5}), dy = floats({1, 1, 1, 1}, {7});
  check_values(run("arbalest.MaxPoolGrad", {dy, x, y}, 1, window)[0], {0, 7, 0, 0});
  const auto taps = [&](const std::vector<double>& image) {
    return run("arbalest.MaxPoolTaps", {floats({1, 1, 2, 2}, image)}, 2, window)[1][0];
  };
  constexpr double kLeast = -std::numeric_limits<double>::infinity();
  CHECK(taps({1, 5, 5, 2}) == 1);
  CHECK(taps({9, nan, 3, nan}) == 1);
  CHECK(taps({kLeast, kLeast, kLeast, kLeast}) == 0);
  Attributes whole = window;
  whole.set("image", std::vector<int64_t>{2, 2});
  const Tensor tap = make_tensor({DataType::Uint8, {1, 1, 1, 1}}, {2});
  check_values(run("arbalest.MaxPoolTapsGrad", {dy, tap}, 1, whole)[0], {0, 0, 7, 0});
}

TEST_CASE("max pool: a Relu's mask and sums over windows are those over the image") {
  // Numbers that meet, some below 0 and all alike in places; windows that overlap, touch and leave gaps.
  std::vector<double> image;
  for (int i = 0; i < 2 * 3 * 7 * 6; ++i) image.push_back(std::max(0, i * 7919 % 11 - 6));
  const Tensor x = floats({2, 3, 7, 6}, image);
  for (const int64_t kernel : {2, 3}) {
    for (const int64_t stride : {1, 2, 3}) {
      Attributes window{{"kernel_shape", std::vector<int64_t>{kernel, kernel}},
                        {"strides", std::vector<int64_t>{stride, stride}},
                        {"pads", std::vector<int64_t>{1, 0, 1, 1}}};
      const std::vector<std::vector<double>> pooled = run("arbalest.MaxPoolTaps", {x}, 2, window);
      const Shape shape = {2, 3, (9 - kernel) / stride + 1, (7 - kernel) / stride + 1};
      REQUIRE(int64_t(pooled[0].size()) == shape[0] * shape[1] * shape[2] * shape[3]);
      std::vector<double> flowing;
      for (size_t i = 0; i < pooled[0].size(); ++i) flowing.push_back(double(i * 31 % 17) - 8);
      const Tensor y = floats(shape, pooled[0]), dy = floats(shape, flowing);
      const auto image_gradient = run("arbalest.MaxPoolGrad", {dy, x, y}, 1, window);
      const auto expected = run("arbalest.ReluGradSums", {floats({2, 3, 7, 6}, image_gradient[0]), x}, 2);
      const auto windows = run("arbalest.ReluGradSums", {dy, y}, 2);
      Attributes whole = window;
      whole.set("image", std::vector<int64_t>{7, 6});
      const Tensor taps = make_tensor({DataType::Uint8, shape}, pooled[1]);
      const auto found = run("arbalest.MaxPoolTapsGrad", {floats(shape, windows[0]), taps}, 1, whole);
      CHECK(found[0] == expected[0]);
      CHECK(windows[1] == expected[1]);
    }
  }
}

TEST_CASE("elementwise operators broadcast as ONNX and NumPy do") {
  const Tensor rows = floats({2, 3}, {1, 2, 3, 4, 5, 6});
  check_values(run("Add", {rows, floats({3}, {10, 20, 30})}, 1)[0], {11, 22, 33, 14, 25, 36});
  check_values(run("Sub", {rows, floats({2, 1}, {10, 20})}, 1)[0], {-9, -8, -7, -16, -15, -14});
  check_values(run("Div", {floats({}, {12}), rows}, 1)[0], {12, 6, 4, 3, 2.4, 2});
  check_values(run("Mul", {floats({2, 1}, {1, 2}), floats({1, 2}, {3, 4})}, 1)[0], {3, 4, 6, 8});
  // One number a channel of an image (2 channels of 1×3), which is channels-last in memory.
  const Tensor image = channels_last({1, 2, 1, 3}, {1, 10, 2, 20, 3, 30});
  check_values(run("Add", {image, floats({2, 1, 1}, {0.5, 0.25})}, 1)[0], {1.5, 10.25, 2.5, 20.25, 3.5, 30.25});
  check_values(run("Pow", {floats({3}, {-2, 0, 3}), floats({}, {2})}, 1)[0], {4, 0, 9});
  CHECK(run("Add", {floats({0, 3}, {}), floats({3}, {1, 2, 3})}, 1)[0].empty());
}

TEST_CASE("elementwise operators agree with their definitions, at 0, far out and on NaN") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto at = [](const char* name, std::vector<double> x, const Attributes& attributes = {}) {
    const int64_t count = int64_t(x.size());
    return run(name, {floats({count}, x)}, 1, attributes)[0];
  };
  check_values(at("Sigmoid", {0, -200, 200}), {0.5, 0, 1});
  check_values(at("Softplus", {0, -200, 200}), {std::log(2.0), 0, 200});
  check_values(at("Gelu", {0, 1, -1, 20, -20}), {0, 0.84134475, -0.15865525, 20, 0});
  check_values(at("Gelu", {1, -1}, {{"approximate", "tanh"}}), {0.84119199, -0.15880801});
  check_values(at("Mish", {1, -200, 200}), {0.86509839, 0, 200});
  check_values(at("Selu", {1, -1}), {1.05070099, -1.11133074});
  check_values(at("HardSwish", {-4, -1, 1, 4}), {0, -1.0 / 3, 2.0 / 3, 4});
  check_values(at("HardSigmoid", {-4, 1, 4}), {0, 0.7, 1});
  check_values(at("Sign", {-inf, 0, 3}), {-1, 0, 1});
  check_values(at("ThresholdedRelu", {1, 1.5, -3}), {0, 1.5, 0});
  for (const char* name : {"Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Sigmoid", "Softplus", "Gelu", "Mish", "Sign",
                           "HardSigmoid", "HardSwish", "Abs", "Tanh"}) {
    INFO(std::string(name));
    CHECK(std::isnan(at(name, {nan})[0]));
  }
  for (const char* name : {"Max", "Min", "Add", "Pow"}) {
    INFO(std::string(name));
    CHECK(std::isnan(run(name, {floats({}, {nan}), floats({}, {2})}, 1)[0][0]));
    CHECK(std::isnan(run(name, {floats({}, {2}), floats({}, {nan})}, 1)[0][0]));
  }
}

TEST_CASE("the gradient of a power by its base is defined at 0") {
  // The powers 0⁰, 0¹, 0² and 0³: a constant, x, x² and x³ at 0.
  const Tensor base = floats({4}, {0, 0, 0, 0}), exponent = floats({4}, {0, 1, 2, 3}), back = floats({4}, {5, 5, 5, 5});
  check_values(run("arbalest.PowGradA", {back, base, exponent}, 1)[0], {0, 5, 0, 0});
  check_values(run("arbalest.PowGradB", {back, base, exponent}, 1)[0], {0, 0, 0, 0});
}

TEST_CASE("nothing flows back through a softmax of −∞ alone, as of masked attention") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Tensor back = floats({2, 3}, {0, 0, 0, 1, 2, 3}), shares = floats({2, 3}, {kNan, kNan, kNan, 0.2, 0.3, 0.5});
  for (const Shape& shape : {Shape{2, 3}, Shape{2, 3, 1}}) {
    const Tensor dy = floats(shape, values_of(back)), y = floats(shape, values_of(shares));
    const Attributes axis = {{"axis", int64_t{1}}};
    check_values(run("arbalest.SoftmaxGrad", {dy, y}, 1, axis)[0], {0, 0, 0, -0.26, -0.09, 0.35});
#ifdef ARBALEST_CUDA
    std::string why_not;
    const auto gpu = make_cuda_device(why_not);
    if (!gpu) continue;
    const Case test(builtin_ops().get("arbalest.SoftmaxGrad"), {dy.type, y.type}, 1, axis, "under_test");
    const Outcome outcome = run_kernel(*gpu, test.get(), test.output_types(), {dy, y}, {});
    check_values(values_of(outcome.outputs[0]), {0, 0, 0, -0.26, -0.09, 0.35});
#endif
  }
}

TEST_CASE("flatten puts channels-last images into logical order, and leaves what is row-major as it is") {
  // Two channels of 1×2: memory is (c0, c1) at each pixel.
  const Tensor image = channels_last({1, 2, 1, 2}, {1, 10, 2, 20}), rows = floats({1, 2, 1, 2}, {1, 2, 10, 20});
  check_values(run("Flatten", {image}, 1)[0], {1, 2, 10, 20});
  check_values(run("Flatten", {rows}, 1)[0], {1, 2, 10, 20});
  const Tensor flat = floats({1, 4}, {1, 2, 10, 20});
  check_values(run("arbalest.Unflatten", {flat, image}, 1)[0], {1, 10, 2, 20});
  check_values(run("arbalest.Unflatten", {flat, rows}, 1)[0], {1, 2, 10, 20});
}

TEST_CASE("operands of an addition may lie differently; the sum lies as the first that is not broadcast") {
  const Tensor image = channels_last({1, 2, 1, 2}, {1, 10, 2, 20}), rows = floats({1, 2, 1, 2}, {0.1, 0.2, 0.3, 0.4});
  check_values(run("Add", {image, rows}, 1)[0], {1.1, 10.3, 2.2, 20.4});
  check_values(run("Add", {rows, image}, 1)[0], {1.1, 2.2, 10.3, 20.4});
  check_values(run("Add", {floats({}, {1}), image}, 1)[0], {2, 11, 3, 21});
}

TEST_CASE("Transpose: axes change places, whatever the layout") {
  // (batch, tokens, heads, depth) = (1, 2, 2, 2) to (batch, heads, tokens, depth).
  const std::vector<double> values = {0, 1, 2, 3, 4, 5, 6, 7};
  const Attributes heads_first = {{"perm", std::vector<int64_t>{0, 2, 1, 3}}};
  check_values(run("Transpose", {floats({1, 2, 2, 2}, values)}, 1, heads_first)[0], {0, 1, 4, 5, 2, 3, 6, 7});
  // Channels last in memory and then in logical order too: nothing moves.
  const Attributes channels_to_the_end = {{"perm", std::vector<int64_t>{0, 2, 3, 1}}};
  check_values(run("Transpose", {channels_last({1, 2, 2, 2}, values)}, 1, channels_to_the_end)[0], values);
  check_values(run("Transpose", {floats({2, 3}, {1, 2, 3, 4, 5, 6})}, 1)[0], {1, 4, 2, 5, 3, 6});
}

TEST_CASE("an Identity in place does nothing, and elsewhere copies") {
  CHECK(run("Identity", {floats({3}, {1, 2, 3})}, 1)[0] == std::vector<double>{1, 2, 3});
}

}  // namespace semantics_test
