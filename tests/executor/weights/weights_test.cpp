// SPDX-License-Identifier: Apache-2.0

// Weights of other programs: names, kernels in TensorFlow's order, what is missing, left and started anew.

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>

#include "executor/weights/class_names.h"
#include "executor/weights/weights_file.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace weights_test {
namespace {

NamedTensor tensor(const std::string& name, const Shape& shape, float first = 0) {
  NamedTensor tensor{name, DataType::Float32, shape, {}};
  std::vector<float> numbers(size_t(element_count(shape)));
  for (float& number : numbers) number = first++;
  tensor.bytes.resize(numbers.size() * sizeof(float));
  std::memcpy(tensor.bytes.data(), numbers.data(), tensor.bytes.size());
  return tensor;
}

struct Files {
  TestFolder folder;
  std::string weights = folder / "w.safetensors", map = folder / "names.map";

  WeightsFile open(const std::vector<NamedTensor>& tensors, const std::string& rules = "",
                   std::vector<std::string> fresh = {}) const {
    write_safetensors(weights, {tensors, {}});
    std::ofstream(map) << rules;
    return WeightsFile(weights, rules.empty() ? "" : map, std::move(fresh));
  }
};

std::vector<float> read(const WeightsFile& file, const std::string& name, const Shape& shape) {
  Value value;
  value.name = name;
  value.type = {DataType::Float32, shape};
  const std::vector<std::byte> bytes = file.read(value);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

std::string map_fault(const std::string& text) {
  return message_of([&] { WeightsMap(text, "names.map"); });
}

}  // namespace

TEST_CASE("a file keeps what classes are called") {
  const Files files;
  const auto names_of = [&](const Metadata& metadata) {
    write_safetensors(files.weights, {{tensor("w", {2})}, metadata});
    return WeightsFile(files.weights).class_names();
  };
  using Names = std::vector<std::string>;
  Metadata metadata = {{"epoch", "3"}};
  put_class_names(metadata, {});
  CHECK(metadata.size() == 1);
  CHECK(names_of(metadata).empty());
  const Names names = {"cat", "a \"dog\", or\ntwo", "", "ämu"};
  put_class_names(metadata, names);
  CHECK(names_of(metadata) == names);
  put_class_names(metadata, {"\xff"});
  CHECK(names_of(metadata) == Names{"\xef\xbf\xbd"});  // what a file can hold
  for (const char* other : {"cat, dog", "{\"cat\": 0}", "[\"cat\", 1]", "3", ""}) {
    CHECK(names_of({{"class_names", other}}).empty());
  }
}

TEST_CASE("a map is text, whatever its line ends, with a byte order mark or without") {
  const Files files;
  for (const char* rules : {"a x\nb y\n",
                            "\xef\xbb\xbf"
                            "a x\r\nb y\r\n",
                            "\xef\xbb\xbf"
                            "a x\rb y"}) {
    const WeightsFile file = files.open({tensor("a", {2}, 1), tensor("b", {2}, 5)}, rules);
    CHECK(read(file, "x", {2}) == std::vector<float>{1, 2});
    CHECK(read(file, "y", {2}) == std::vector<float>{5, 6});
  }
}

TEST_CASE("a map gives tensors the graph's names") {
  const WeightsMap map(
      "# comment\n"
      "\n"
      "layer1.*.conv*.weight  h*/c*.conv.weight # the k-th * is the k-th\r\n"
      "\tfc.weight\tlogits.weight\n"
      "fc.*  other.*\n"
      "*.num_batches_tracked -\n"
      "head/* -\n"
      "block*_bn b*/bn keras\n"
      "count* - keras\n"
      "*/kernel *.weight transposed\n"
      "a*b* *\n"
      "word keras\n",
      "names.map");
  CHECK(map("layer1.0.conv12.weight").name == "h0/c12.conv.weight");
  CHECK(map("layer1..conv.weight").name == "h/c.conv.weight");
  CHECK(map("layer2.0.conv1.weight").name == "layer2.0.conv1.weight");
  CHECK(map("fc.weight").name == "logits.weight");
  CHECK(map("fc.bias").name == "other.bias");
  CHECK(map("bn.num_batches_tracked").name == "");
  CHECK(map("dense/kernel").name == "dense.weight");
  CHECK(map("dense/kernel").transposed);
  CHECK_FALSE(map("fc.weight").transposed);
  CHECK(map("head/kernel").name == "");
  CHECK(map("block7_bn/gamma").name == "b7/bn.weight");
  CHECK(map("block7_bn/beta").name == "b7/bn.bias");
  CHECK(map("block7_bn/moving_mean").name == "b7/bn.running_mean");
  CHECK(map("block7_bn/moving_variance").name == "b7/bn.running_var");
  CHECK(map("block7_bn/embeddings").name == "b7/bn.weight");
  CHECK(map("block7_bn/bias").name == "b7/bn.bias");
  CHECK_FALSE(map("block7_bn/bias").transposed);
  CHECK(map("block7_bn/kernel").name == "b7/bn.weight");
  CHECK(map("block7_bn/kernel").transposed);
  CHECK(map("block7_bn/other").name == "block7_bn/other");  // no variable of Keras' layers
  CHECK(map("block7_bn").name == "block7_bn");
  CHECK(map("counter/bias").name == "");
  CHECK(map("word").name == "keras");
  CHECK(map("axbybz").name == "x");  // as few as fit
  CHECK(WeightsMap()("fc.weight").name == "fc.weight");
}

TEST_CASE("a pattern with any number of * is matched in no time") {
  std::string many;
  for (int i = 0; i < 40; ++i) many += "*a";
  const std::string name(200, 'a');
  CHECK(WeightsMap(many + "b x\n", "names.map")(name).name == name);
  CHECK(WeightsMap(many + "* *\n", "names.map")(name).name == "");
  CHECK(WeightsMap("x" + std::string(300'000, '*') + " y\n", "names.map")("xyz").name == "y");
  CHECK(WeightsMap("*ab*ab x*y*\n", "names.map")("abab").name == "xy");
  CHECK(WeightsMap("ab*b x\n", "names.map")("ab").name == "ab");  // no letter fits twice
}

TEST_CASE("a map that is wrong is refused with its line") {
  CHECK(contains(map_fault("a b\nfc.weight\n"), "names.map:2:1: found 1 word, expected a pattern"));
  CHECK(contains(map_fault("a b transposed c"), "names.map:1:1: found 4 words"));
  CHECK(contains(map_fault("a b transpose"), "found 'transpose', expected 'transposed', 'keras' or the end"));
  CHECK(contains(map_fault("\n\na.* b.*.*"), "names.map:3:1: 'b.*.*' has more * than 'a.*'"));
}

TEST_CASE("tensors are read under the graph's names, kernels of TensorFlow in our order") {
  const Files files;
  const WeightsFile file = files.open({tensor("fc.weight", {2, 3}), tensor("dense/kernel", {3, 2}),
                                       tensor("conv/kernel", {1, 2, 2, 3}), tensor("depth/kernel", {2, 1, 3, 2})},
                                      "fc.* logits.*\n*/kernel *.weight transposed\n");
  CHECK(read(file, "logits.weight", {2, 3}) == std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK(read(file, "dense.weight", {2, 3}) == std::vector<float>{0, 2, 4, 1, 3, 5});
  // (height, width, channels, filters): element (0, s, c, k) is 6s + 3c + k.
  CHECK(read(file, "conv.weight", {3, 2, 1, 2}) == std::vector<float>{0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11});
  // Depthwise, (height, width, channels, multiplier): element (r, 0, c, m) is 6r + 2c + m.
  CHECK(read(file, "depth.weight", {6, 1, 2, 1}) == std::vector<float>{0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11});
  CHECK(
      contains(message_of([&] {
                 read(file, "logits.weight", {2, 4});
               }),
               "w.safetensors: tensor 'fc.weight' is float[2,3], the graph's parameter 'logits.weight' is float[2,4]"));
  CHECK(
      contains(message_of([&] {
                 read(file, "dense.weight", {3, 2});
               }),
               "tensor 'dense/kernel' is float[3,2] (transposed), the graph's parameter 'dense.weight' is float[3,2]"));
  CHECK(contains(message_of([&] {  // a matrix is no depthwise kernel
                   read(file, "dense.weight", {6, 1});
                 }),
                 "tensor 'dense/kernel' is float[3,2] (transposed)"));
  CHECK(contains(message_of([&] {
                   files.open({tensor("a", {1}), tensor("b", {1})}, "a b\n");
                 }),
                 "tensors 'a' and 'b' both become 'b'"));
}

TEST_CASE("with a map axes of extent 1 do not count") {
  const Files files;
  const std::vector<NamedTensor> tensors = {tensor("scale", {3, 1, 1}), tensor("head", {2, 3, 1, 1})};
  const WeightsFile file = files.open(tensors, "head logits\n");
  CHECK(read(file, "scale", {3}) == std::vector<float>{0, 1, 2});
  CHECK(read(file, "logits", {2, 3}) == std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK(contains(message_of([&] { read(file, "logits", {3, 2}); }), "tensor 'head' is float[2,3,1,1]"));
  CHECK(contains(
      message_of([&] { read(files.open(tensors), "scale", {3}); }),
      "tensor 'scale' is float[3,1,1], the graph's parameter is float[3]; in training --fresh 'scale' leaves it"));
}

TEST_CASE("without a map all that is missing is reported, or all that is unknown") {
  const Files files;
  const std::vector<NamedTensor> tensors = {tensor("fc.weight", {2}), tensor("fc.bias", {1}), tensor("c", {3})};
  const auto fault = [&](const std::vector<std::string>& names) {
    return message_of([&] { files.open(tensors).check(names); });
  };
  CHECK(fault({"fc.weight", "fc.bias", "c"}) == "");
  CHECK(contains(fault({"fc.weights", "fc.bias", "c", "d"}),
                 "no tensor 'fc.weights', which the graph needs; did you mean 'fc.weight'?; also missing: d"));
  CHECK(contains(fault({"d"}), "--weights-map tells of other names, in training --fresh what is to start anew"));
  CHECK(contains(fault({"c"}), "tensor 'fc.weight' is not in the graph; nor are: fc.bias"));
  NamedTensor counter{"bn.num_batches_tracked", DataType::Int64, {}, std::vector<uint8_t>(8)};
  CHECK(message_of([&] { files.open({tensor("c", {3}), counter}).check({"c"}); }) == "");
  counter = {"bn.num_batches_tracked", DataType::Float32, {}, std::vector<uint8_t>(4)};  // as model.half() leaves it
  CHECK(message_of([&] { files.open({tensor("c", {3}), counter}).check({"c"}); }) == "");
}

TEST_CASE("parameters that start anew are not read, whatever the file has") {
  const Files files;
  const WeightsFile file =
      files.open({tensor("fc.weight", {2}), tensor("fc.bias", {1}), tensor("c", {3})}, "", {"fc.*", "head*"});
  const std::vector<std::string> names = {"fc.weight", "c", "head"};
  CHECK(message_of([&] { file.check(names); }) == "");
  CHECK_FALSE(file.has("fc.weight"));
  CHECK_FALSE(file.has("head"));
  CHECK(file.has("c"));
  CHECK(contains(file.summary(names),
                 "w.safetensors: 1 tensors taken; 2 left: fc.weight, fc.bias; 2 start anew: "
                 "fc.weight, head"));
  CHECK(contains(message_of([&] {
                   file.check({"fc.weight", "c"});
                 }),
                 "--fresh 'head*': the graph has no such parameter"));
  CHECK(contains(message_of([&] { file.check({"fc.weight", "head", "d"}); }), "no tensor 'd'"));
  CHECK(files.open({tensor("c", {3})}).summary({"c"}) == "");
}

TEST_CASE("a trunk from a file of other names trains under a new head") {
  const TestFolder folder;
  SessionOptions first = on_cpus();
  first.length.iterations = 4;
  first.files.save = folder / "trunk.safetensors";
  run(tiny({}), first);

  TinyNet net;  // the hidden layer has another name, the head another size
  net.layers = "body = arbalest.Linear <units = 16> (x)\nh = Relu (body)\n";
  net.train = "lr = 0.1, frozen = [\"body.*\"]";
  std::string text = write_graph_text(tiny(net));
  const size_t head = text.find("units = 10");
  REQUIRE(head != text.npos);
  text.replace(head, 10, "units = 12");
  const Graph graph = read_graph_text(text, "wide.onnxtxt", builtin_ops());

  SessionOptions second = on_cpus();
  second.length.iterations = 4;
  second.files.weights = first.files.save;
  second.files.weights_map = folder / "names.map";
  second.files.save = folder / "wide.safetensors";
  std::ofstream(second.files.weights_map) << "hidden.* body.*\n";
  CHECK(contains(message_of([&] { run(graph, second); }), "the graph's parameter is float[12"));
  second.files.fresh = {"logits.*"};
  run(graph, second);
  const TensorFile before = read_safetensors(first.files.save), after = read_safetensors(second.files.save);
  REQUIRE(after.find("body.weight"));
  CHECK(after.find("body.weight")->bytes == before.find("hidden.weight")->bytes);  // frozen
  CHECK(after.find("logits.weight")->shape == Shape{12, 16});
}

TEST_CASE("weights: classes that another data set numbers otherwise are reported") {
  CHECK(other_classes({"bird", "cat"}, {"bird", "cat"}) == "");
  CHECK(other_classes({"bird", "cat"}, {"cat", "zebra"}) == "class 0 was 'bird', and is 'cat'");
  CHECK(other_classes({"bird", "cat"}, {"bird"}) == "class 1 was 'cat', and is not there");
  CHECK(other_classes({}, {"bird"}) == "");
  CHECK(other_classes({"bird"}, {}) == "");
}

}  // namespace weights_test
