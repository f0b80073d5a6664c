// SPDX-License-Identifier: Apache-2.0

// Models with tensors in files next to them: round trips, places in large files, and what is refused.

#include <doctest/doctest.h>

#include "graph/file/graph_file.h"
#include "graph/file/onnx_file.h"
#include "tests/graph/file_fixture.h"

#ifdef ARBALEST_ONNX

#include <onnx/onnx_pb.h>

#include <cstring>
#include <fstream>

using namespace arbalest;

namespace external_data_test {
namespace {

namespace fs = std::filesystem;

void write(const std::string& path, const std::string& content) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

std::string bytes_of(const std::vector<float>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

std::vector<float> floats_of(const Graph& graph, const std::string& name) {
  const Value& value = graph.values.at(graph.find_value(name));
  std::vector<float> numbers(size_t(value.type.elements()));
  REQUIRE(value.initializer.data->size() == numbers.size() * sizeof(float));
  std::memcpy(numbers.data(), value.initializer.data->data(), value.initializer.data->size());
  return numbers;
}

// A model with the initialiser float[2] w, whose data lies where `entries` say.
struct External : FileTestFolder {
  std::string model = file("model.onnx");

  std::string read(const std::vector<std::pair<std::string, std::string>>& entries) const {
    onnx::ModelProto proto;
    onnx::TensorProto& tensor = *proto.mutable_graph()->add_initializer();
    tensor.set_name("w");
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    tensor.add_dims(2);
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    for (const auto& [key, value] : entries) {
      auto& entry = *tensor.add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
    write(model, proto.SerializeAsString());
    numbers.clear();
    return error_of([&] { numbers = floats_of(read_onnx(model, file_test_ops()), "w"); });
  }
  mutable std::vector<float> numbers;
};

bool has(const std::string& text, const std::string& phrase) {
  return text.find(phrase) != std::string::npos;
}

}  // namespace

TEST_CASE("external data: tensors are read where the model says that they lie") {
  const External folder;
  write(folder.file("weights/a.bin"), bytes_of({1, 2, 3, 4}));
  CHECK(folder.read({{"location", "weights/a.bin"}, {"offset", "4"}, {"length", "8"}}) == "");
  CHECK(folder.numbers == std::vector<float>{2, 3});
  CHECK(folder.read({{"location", "weights/a.bin"}, {"offset", "8"}}) == "");
  CHECK(folder.numbers == std::vector<float>{3, 4});
  CHECK(folder.read({{"location", "./weights/a.bin"}, {"checksum", "?"}}) == "");
  CHECK(folder.numbers == std::vector<float>{1, 2});
}

TEST_CASE("external data: places beyond 2 GiB and 4 GiB") {
  const External folder;
  const std::string path = folder.file("large.bin");
  const uint64_t offset = (uint64_t{9} << 29) + 4;  // 4.5 GiB
  write(path, "");
  std::error_code error;
  fs::resize_file(path, offset + 8, error);
  if (error) {
    MESSAGE("SKIP: the file system has no sparse files of 4.5 GiB");
    return;
  }
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(int64_t(offset)) << bytes_of({5, 6});
  CHECK(folder.read({{"location", "large.bin"}, {"offset", std::to_string(offset)}, {"length", "8"}}) == "");
  CHECK(folder.numbers == std::vector<float>{5, 6});
}

TEST_CASE("external data: what is outside the folder or the file is refused") {
  const External folder;
  write(folder.file("a.bin"), bytes_of({1, 2, 3}));
  write(folder.file("inner/b.bin"), bytes_of({1, 2, 3}));
  const std::string first = "model.onnx: initialiser 'w': ";
  for (const std::string& location : {std::string("../a.bin"), std::string("inner/../../a.bin"), folder.file("a.bin"),
                                      std::string(), std::string("a.bin\0b", 7)}) {
    const std::string message = folder.read({{"location", location}});
    INFO(message);
    CHECK(has(message, first + "the location of its data is '"));
    CHECK(has(message, "expected a file in the model's folder"));
  }
  CHECK(has(folder.read({}), "location of its data is ''"));
  CHECK(has(folder.read({{"location", "none.bin"}}), "none.bin: cannot be opened"));
  CHECK(has(folder.read({{"location", "inner"}}), "inner: expected data of a model, found a folder"));
  const auto place = [&](const char* offset, const char* length) {
    return folder.read({{"location", "a.bin"}, {"offset", offset}, {"length", length}});
  };
  CHECK(place("4", "8") == "");
  CHECK(has(place("8", "8"),
            first + "its data are 8 bytes from byte 8 on of '" + folder.file("a.bin") + "', which has 12 bytes"));
  CHECK(has(place("13", "0"), "which has 12 bytes"));
  CHECK(has(place("18446744073709551615", "8"), "which has 12 bytes"));
  CHECK(has(place("4", "18446744073709551615"), "which has 12 bytes"));
  CHECK(has(place("0", "12"), first + "8 bytes expected, found 12 in"));
  CHECK(has(place("-4", "8"), "the offset of its data is '-4', expected a whole number of bytes"));
  CHECK(has(place("0", "8 "), "the length of its data is '8 '"));
  CHECK(has(folder.read({{"location", "a.bin"}, {"offset", "8"}}), "8 bytes from byte 8 on"));
}

TEST_CASE("external data: a model is written so on request and read back") {
  const FileTestFolder folder;
  std::string numbers = "0.5";
  for (int i = 1; i < 300; ++i) numbers += fmt::format(", {}", i);
  const Graph graph = read_graph_text(
      fmt::format("g (float[2] x) => () <float[300] large = {{{0}}}, float[2] small = {{1, 2}}, float[3, 100] other = "
                  "{{{0}}}> {{ y = Add (x, small) a = Relu (large) b = Relu (other) }}",
                  numbers),
      "f", file_test_ops());
  const std::string path = folder.file("net.onnx");
  CHECK(external_data_path(path) == path + ".data");
  write_onnx(graph, path);
  CHECK_FALSE(fs::exists(path + ".data"));
  write_onnx(graph, path, {.external_data = true});
  CHECK(fs::file_size(path) < 1024);
  CHECK(fs::file_size(path + ".data") == 1216 + 1200);  // 1200 bytes each, the second from a multiple of 64 on
  CHECK(difference(graph, read_onnx(path, file_test_ops())) == "");
  fs::create_directory(folder.file("moved"));
  fs::rename(path, folder.file("moved/net.onnx"));
  fs::rename(path + ".data", folder.file("moved/net.onnx.data"));
  CHECK(difference(graph, read_onnx(folder.file("moved/net.onnx"), file_test_ops())) == "");
}

#endif

}  // namespace external_data_test
