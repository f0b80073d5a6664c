// SPDX-License-Identifier: Apache-2.0

// The source tensors: fields from safetensors files, one a split.

#include <doctest/doctest.h>

#include <cstring>

#include "base/error.h"
#include "io/formats/safetensors.h"
#include "io/open/open_source.h"
#include "io/sources/source.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace tensors_test {
namespace {

template <typename T>
NamedTensor tensor(const std::string& name, DataType dtype, Shape shape, const std::vector<T>& values) {
  NamedTensor made{name, dtype, std::move(shape), std::vector<uint8_t>(values.size() * sizeof(T))};
  std::memcpy(made.bytes.data(), values.data(), made.bytes.size());
  return made;
}

std::unique_ptr<Source> open(const TestFolder& folder, const std::string& options = "", const char* split = "train") {
  return open_source("tensors:" + folder.string() + options, split, 1);
}

// Two samples: planes of 2 × 3 pixels, two floats, a class.
TensorFile two_samples() {
  std::vector<uint8_t> planes(24);
  for (size_t i = 0; i < planes.size(); ++i) planes[i] = uint8_t(i);
  return {{tensor("image", DataType::Uint8, {2, 2, 2, 3}, planes),
           tensor("label", DataType::Int64, {2}, std::vector<int64_t>{4, 1}),
           tensor("weight", DataType::Float32, {2, 2}, std::vector<float>{0.5f, 1.5f, 2.5f, 3.5f})},
          {}};
}

}  // namespace

TEST_CASE("tensors: each tensor is a field, and images become channels-last") {
  const TestFolder folder;
  write_safetensors(folder / "train.safetensors", two_samples());
  const auto source = open(folder, "?classes=5");
  CHECK(source->size() == 2);
  CHECK(to_string(source->fields()) == "image uint8[2,2,3], label int32[] of 5 classes, weight float[2]");
  std::vector<uint8_t> images(24);
  std::vector<int32_t> labels(2);
  std::vector<float> weights(4);
  const std::vector<SampleRef> samples = {{1, 0, 0}, {0, 0, 1}};
  std::byte* const fields[] = {reinterpret_cast<std::byte*>(images.data()), reinterpret_cast<std::byte*>(labels.data()),
                               reinterpret_cast<std::byte*>(weights.data())};
  source->fill(samples, fields);
  CHECK(labels == std::vector<int32_t>{1, 4});
  CHECK(weights == std::vector<float>{2.5f, 3.5f, 0.5f, 1.5f});
  CHECK(std::vector<uint8_t>(images.begin(), images.begin() + 12) ==
        std::vector<uint8_t>{12, 18, 13, 19, 14, 20, 15, 21, 16, 22, 17, 23});
  CHECK(images[12] == 0);
  CHECK(images[13] == 6);
}

TEST_CASE("tensors: floating numbers of other types are read as floats, images among them") {
  const TestFolder folder;
  const std::vector<double> planes = {0, 1, 2, 3, 4, 5, 6, 7};  // 2 planes of 2 × 2 pixels
  const std::vector<bfloat16> halves = {bfloat16(1.5f), bfloat16(-2.0f)};
  write_safetensors(folder / "train.safetensors", {{tensor("image", DataType::Float64, {1, 2, 2, 2}, planes),
                                                    tensor("x", DataType::Bfloat16, {1, 2}, halves)},
                                                   {}});
  const auto source = open(folder);
  CHECK(to_string(source->fields()) == "image float[2,2,2], x float[2]");
  CHECK(
      source->describe().ends_with("; image is double in its file, read as float; x is bfloat16 in its file, read as "
                                   "float"));
  std::vector<float> image(8), x(2);
  const SampleRef only[] = {{0, 0, 0}};
  std::byte* const fields[] = {reinterpret_cast<std::byte*>(image.data()), reinterpret_cast<std::byte*>(x.data())};
  source->fill(only, fields);
  CHECK(image == std::vector<float>{0, 4, 1, 5, 2, 6, 3, 7});  // channels last
  CHECK(x == std::vector<float>{1.5f, -2});
}

TEST_CASE("tensors: what is wrong with a file is reported") {
  const TestFolder folder;
  check_parts(message_of<RunError>([&] { open(folder); }), {"train.safetensors", "which is empty"});
  TensorFile file = two_samples();
  write_safetensors(folder / "train.safetensors", file);
  check_parts(message_of<RunError>([&] { open(folder, "", "test"); }), {"test.safetensors", "which holds train"});
  check_parts(message_of<GraphError>([&] { open(folder, "", "dev"); }), {"unknown split 'dev'", "validation"});
  check_parts(message_of<GraphError>([&] { open(folder, "?classes=4"); }),
              {"field 'label' of sample 0 is 4, expected 0 to 3"});
  check_parts(message_of<GraphError>([&] { open(folder, "?classes=0"); }), {"option 'classes' is '0'"});
  file.tensors[1] = tensor("label", DataType::Int64, {}, std::vector<int64_t>{4});
  write_safetensors(folder / "train.safetensors", file);
  check_parts(message_of<RunError>([&] { open(folder); }),
              {"train.safetensors: tensor 'label' is int64[]", "samples along its first dimension"});
  file.tensors[1] = tensor("label", DataType::Int64, {3}, std::vector<int64_t>{1, 2, 3});
  write_safetensors(folder / "train.safetensors", file);
  check_parts(message_of<GraphError>([&] { open(folder); }), {"field 'image' holds 2 samples, field 'label' 3"});
  file.tensors[1] = tensor("label", DataType::Int64, {2}, std::vector<int64_t>{1, int64_t{1} << 40});
  write_safetensors(folder / "train.safetensors", file);
  check_parts(message_of<RunError>([&] { open(folder); }),
              {"sample 1 of tensor 'label' is 1099511627776, which an int32 does not hold"});
  file.tensors[1] = tensor("a label", DataType::Int64, {2}, std::vector<int64_t>{1, 2});
  write_safetensors(folder / "train.safetensors", file);
  check_parts(message_of<GraphError>([&] { open(folder); }), {"train.safetensors", "a label"});
}

TEST_CASE("tensors: whole numbers of any width, and booleans, are read as npy: reads them") {
  const TestFolder folder;
  // A file of one tensor "label" of a type that write_safetensors() has not.
  const auto write = [&](const std::string& dtype, const std::string& shape, const auto& values) {
    const size_t size = values.size() * sizeof values[0];
    const std::string header = R"({"label":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[0,)" +
                               std::to_string(size) + "]}}";
    const uint64_t length = header.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += header;
    bytes.append(reinterpret_cast<const char*>(values.data()), size);
    folder.write("train.safetensors", bytes);
  };
  const auto labels = [&](const std::string& dtype, const auto& values) {
    write(dtype, "[2]", values);
    const auto source = open(folder);
    CHECK(to_string(source->fields()) == "label int32[]");
    std::vector<int32_t> read(2);
    const std::vector<SampleRef> samples = {{0, 0, 0}, {1, 0, 1}};
    std::byte* const fields[] = {reinterpret_cast<std::byte*>(read.data())};
    source->fill(samples, fields);
    return read;
  };
  using Labels = std::vector<int32_t>;
  CHECK(labels("I8", std::vector<int8_t>{-1, 5}) == Labels{-1, 5});
  CHECK(labels("I16", std::vector<int16_t>{-300, 5}) == Labels{-300, 5});
  CHECK(labels("U16", std::vector<uint16_t>{65535, 5}) == Labels{65535, 5});
  CHECK(labels("U32", std::vector<uint32_t>{2147483647, 5}) == Labels{2147483647, 5});
  CHECK(labels("U64", std::vector<uint64_t>{7, 5}) == Labels{7, 5});
  CHECK(labels("BOOL", std::vector<uint8_t>{1, 0}) == Labels{1, 0});
  write("U32", "[2]", std::vector<uint32_t>{4294967295u, 5});
  check_parts(message_of<RunError>([&] { open(folder); }), {"'label' is 4294967295, which an int32 does not hold"});
  write("U64", "[2]", std::vector<uint64_t>{uint64_t{1} << 63, 5});
  check_parts(message_of<RunError>([&] { open(folder); }),
              {"tensor 'label' holds 9223372036854775808; expected numbers below 2^63"});
  write("BOOL", "[2, 2]", std::vector<uint8_t>{1, 0, 0, 1});
  CHECK(to_string(open(folder)->fields()) == "label float[2]");
}

}  // namespace tensors_test
