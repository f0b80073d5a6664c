// SPDX-License-Identifier: Apache-2.0

// Safetensors: round trips, files made byte by byte, hostile ones.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fstream>

#include "base/error.h"
#include "io/formats/safetensors.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace safetensors_test {
namespace {

template <typename T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A file as any writer would make it: length, header, `data` bytes 0, 1, 2, …
std::string file_of(const std::string& header, size_t data, uint64_t length) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  file += header;
  for (size_t i = 0; i < data; ++i) file += char(i);
  return file;
}
std::string file_of(const std::string& header, size_t data) {
  return file_of(header, data, header.size());
}

}  // namespace

TEST_CASE("safetensors: what is written is read") {
  TestFolder folder;
  TensorFile file;
  file.tensors = {
      {"h1/c1.weight", DataType::Float32, {2, 1, 1, 2}, bytes_of<float>({1.5f, -2, 3, 4})},
      {"flags", DataType::Uint8, {3}, {1, 2, 3}},
      {"scalar", DataType::Float64, {}, bytes_of<double>({0.1})},
      {"empty", DataType::Int32, {0, 7}, {}},
      {"half", DataType::Bfloat16, {2}, bytes_of<uint16_t>({0x3f80, 0xbf80})},
      {"counter", DataType::Int64, {1}, bytes_of<int64_t>({-5})},
      {"quote \" and \\ and é", DataType::Int32, {1}, bytes_of<int32_t>({7})},
  };
  file.metadata = {{"format", "pt"}, {"epoch", "3"}};
  write_safetensors(folder / "w.safetensors", file);
  const TensorFile read = read_safetensors(folder / "w.safetensors");
  REQUIRE(read.tensors.size() == file.tensors.size());
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const NamedTensor &a = file.tensors[i], &b = read.tensors[i];
    CHECK(a.name == b.name);
    CHECK(a.dtype == b.dtype);
    CHECK(a.shape == b.shape);
    CHECK(a.bytes == b.bytes);
  }
  CHECK(read.metadata == file.metadata);
  CHECK(read.find("flags") == &read.tensors[1]);
  CHECK(read.find("flag") == nullptr);
  CHECK(folder.names() == std::vector<std::string>{"w.safetensors"});
}

TEST_CASE("safetensors: data is aligned to its elements") {
  TestFolder folder;
  const TensorFile file{{{"a", DataType::Uint8, {3}, {1, 2, 3}}, {"b", DataType::Float64, {1}, bytes_of<double>({2})}},
                        {}};
  const auto path = folder / "w";
  write_safetensors(path, file);
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  uint64_t header = 0;
  std::memcpy(&header, text.data(), 8);
  CHECK(header % 8 == 0);
  CHECK(text.size() == 8 + header + 11);
  CHECK(text.find("\"data_offsets\":[0,8]") > text.find("\"b\""));
  double value = 0;
  std::memcpy(&value, text.data() + 8 + header, 8);
  CHECK(value == 2);
}

TEST_CASE("safetensors: a file of another writer") {
  TestFolder folder;
  // Spaces after the header, the entries in another order than their data, keys that are not ours.
  const std::string header =
      R"({"b":{"data_offsets":[4,6],"dtype":"U8","shape":[1,2],"note":1},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]}}   )";
  const TensorFile file = read_safetensors(folder.write("f", file_of(header, 6)));
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors[0].name == "b");
  CHECK(file.tensors[0].shape == Shape{1, 2});
  CHECK(file.tensors[0].bytes == std::vector<uint8_t>{4, 5});
  CHECK(file.tensors[1].bytes == std::vector<uint8_t>{0, 1, 2, 3});
  CHECK(file.metadata.at("format") == "pt");
  CHECK(read_safetensors(folder.write("none", file_of("{}", 0))).tensors.empty());
}

TEST_CASE("safetensors: malformed files name the file, the tensor, what was expected and found") {
  TestFolder folder;
  const auto refuses = [&](const std::string& content, std::vector<std::string> parts) {
    const auto path = folder.write("bad.safetensors", content);
    parts.push_back(path.string());
    check_parts(message_of<RunError>([&] { read_safetensors(path); }), parts);
  };
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"("w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return file_of("{" + entry(dtype, shape, offsets) + "}", 8);
  };
  CHECK(read_safetensors(folder.write("good", one(R"("F32")", "[2]", "[0,8]"))).tensors.size() == 1);

  refuses("abc", {"at least 8 bytes", "found 3"});
  refuses(file_of("{}", 0, 3), {"length of the header", "at most 2", "found 3"});
  refuses(file_of("{}", 0, ~0ull), {"length of the header", "found 18446744073709551615"});
  refuses(file_of("{", 0), {"header: expected JSON"});
  refuses(file_of("", 0), {"header: expected JSON"});
  refuses(file_of("[]", 0), {"header: expected an object"});
  refuses(file_of(std::string(100000, '['), 0), {"at most 3 levels"});
  refuses(file_of(R"({"a":{"a":{"a":{"a":1}}}})", 0), {"at most 3 levels"});
  refuses(file_of("{\"\xff\":1}", 0), {"header: expected JSON"});

  refuses(one(R"("F8_E4M3")", "[2]", "[0,8]"),
          {"tensor \"w\"", "dtype: expected one of F64, F32", "found \"F8_E4M3\""});
  refuses(one("3", "[2]", "[0,8]"), {"tensor \"w\"", "dtype", "found 3"});
  refuses(one(R"("F32")", "[-2]", "[0,8]"), {"shape", "integers from 0", "[-2]"});
  refuses(one(R"("F32")", "[2.5]", "[0,8]"), {"shape", "[2.5]"});
  refuses(one(R"("F32")", "2", "[0,8]"), {"shape", "found 2"});
  refuses(one(R"("F32")", "[4294967296,4294967296]", "[0,8]"), {"shape", "memory can hold"});
  refuses(one(R"("F32")", "[3]", "[0,8]"), {"expected 12 bytes for F32 of shape [3]", "found 8 bytes"});
  refuses(one(R"("F32")", "[2]", "[0,9]"), {"within the 8 bytes of data", "[0,9]"});
  refuses(one(R"("F32")", "[2]", "[8,0]"), {"data_offsets", "[8,0]"});
  refuses(one(R"("F32")", "[2]", "[0]"), {"data_offsets", "[0]"});
  refuses(one(R"("F32")", "[2]", "[0,18446744073709551615]"), {"data_offsets"});
  refuses(one(R"("F32")", "[1]", "[4,8]"), {"from byte 0", "found from byte 4"});
  refuses(one(R"("F32")", "[1]", "[0,4]"), {"expected 4 bytes, as the header says, found 8"});
  refuses(file_of(R"({"w":[]})", 0), {"tensor \"w\"", "an object"});
  refuses(file_of(R"({"w":{"dtype":"F32","shape":[]}})", 0), {"tensor \"w\"", "'data_offsets'"});
  refuses(file_of(R"({"__metadata__":{"a":1}})", 0), {"__metadata__", "strings", "1"});
  refuses(file_of(R"({"__metadata__":3})", 0), {"__metadata__", "an object"});

  const std::string w = entry(R"("U8")", "[4]", "[0,4]");
  refuses(file_of("{" + w + "," + w + "}", 4), {"unique names", "\"w\" twice"});
  refuses(file_of(R"({"w":{"dtype":"U8","dtype":"F32","shape":[4],"data_offsets":[0,4]}})", 4), {"\"dtype\" twice"});
  refuses(file_of("{" + w + R"(,"v":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6),
          {"tensor \"v\"", "byte 4", "byte 2"});
  check_parts(message_of<RunError>([&] { read_safetensors(folder / "none"); }),
              {"none: cannot be opened", "bad.safetensors"});
}

TEST_CASE("safetensors: what cannot be written leaves the old file") {
  TestFolder folder;
  const TensorFile good{{{"w", DataType::Uint8, {2}, {1, 2}}}, {}};
  const auto path = folder / "w";
  write_safetensors(path, good);
  const auto refuses = [&](const TensorFile& file, const std::vector<std::string>& parts) {
    check_parts(message_of<RunError>([&] { write_safetensors(path, file); }), parts);
    CHECK(read_safetensors(path).find("w")->bytes == good.tensors[0].bytes);
    CHECK(folder.names().size() == 1);
  };
  refuses({{{"x", DataType::Uint8, {3}, {1, 2}}}, {}},
          {"tensor \"x\"", "expected 3 for uint8 of shape (3)", "found 2"});
  refuses({{good.tensors[0], good.tensors[0]}, {}}, {"tensor \"w\"", "name"});
  refuses({{{"__metadata__", DataType::Uint8, {2}, {1, 2}}}, {}}, {"__metadata__", "name"});
  refuses({{{"x", DataType::Token, {}, {}}}, {}}, {"tensor \"x\"", "dtype", "token"});
  refuses({{{"\xff", DataType::Uint8, {1}, {1}}}, {}}, {"UTF-8"});
  check_parts(message_of<RunError>([&] { write_safetensors(folder / "none/w", good); }), {"none/w: cannot be created"});
}

TEST_CASE("safetensors: metadata that is no UTF-8 loses no weights") {
  TestFolder folder;
  write_safetensors(folder / "w", {{{"w", DataType::Uint8, {1}, {7}}}, {{"graph", "g\xff"}}});
  const TensorFile file = read_safetensors(folder / "w");
  CHECK(file.find("w")->bytes == std::vector<uint8_t>{7});
  CHECK(file.metadata.at("graph") == "g\uFFFD");
}

TEST_CASE("safetensors: floating-point tensors are read as the type that is wanted") {
  TestFolder folder;
  const auto write = [&](const char* dtype, const auto& values) {
    const std::vector<uint8_t> data = bytes_of(values);
    std::string file =
        file_of(R"({"w":{"dtype":")" + std::string(dtype) + R"(","shape":[)" + std::to_string(values.size()) +
                    R"(],"data_offsets":[0,)" + std::to_string(data.size()) + "]}}",
                0);
    file.append(data.begin(), data.end());
    return folder.write("w", file);
  };
  const auto read = [&](const std::filesystem::path& path) {
    const SafetensorsReader file(path);
    const SafetensorsReader::Entry& entry = *file.find("w");
    REQUIRE(SafetensorsReader::converts(entry, DataType::Float32));
    CHECK_FALSE(SafetensorsReader::converts(entry, DataType::Int32));
    std::vector<float> floats(size_t(entry.shape[0]));
    file.read(entry, DataType::Float32, std::as_writable_bytes(std::span(floats)));
    return floats;
  };
  // Halves: 1, −2, the largest, the least normal, the least and the largest subnormal, −0, infinity.
  const std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x03ff, 0x8000, 0x7c00};
  const std::vector<float> expected = {1, -2, 65504, 0x1p-14f, 0x1p-24f, 1023 * 0x1p-24f, -0.0f, HUGE_VALF};
  CHECK(read(write("F16", halves)) == expected);
  CHECK(std::signbit(read(write("F16", halves))[6]));
  CHECK(std::isnan(read(write("F16", std::vector<uint16_t>{0x7e00}))[0]));
  CHECK(read(write("BF16", std::vector<uint16_t>{0x3f80, 0xc000})) == std::vector<float>{1, -2});
  CHECK(read(write("F64", std::vector<double>{0.1, 1e300})) == std::vector<float>{0.1f, HUGE_VALF});
  CHECK(read(write("F32", std::vector<float>{0.1f})) == std::vector<float>{0.1f});
  // More than is converted at a time.
  const std::vector<double> many(600'000, 2.5);
  CHECK(read(write("F64", many)) == std::vector<float>(many.size(), 2.5f));
  const TensorFile whole = read_safetensors(write("F16", halves));
  CHECK(whole.tensors[0].dtype == DataType::Float32);
  CHECK(whole.tensors[0].bytes == bytes_of(expected));
}

TEST_CASE("safetensors: the header is read and checked before any tensor") {
  TestFolder folder;
  // 4 TiB of zeros, which no memory holds and no disk has: only the header can be read.
  const uint64_t bytes = uint64_t{1} << 42;
  const auto path = folder.write(
      "sparse",
      file_of(R"({"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,)" + std::to_string(bytes) + "]}}", 0));
  const auto header = std::filesystem::file_size(path);
  std::error_code error;
  std::filesystem::resize_file(path, header + bytes, error);
  if (error) {
    MESSAGE("SKIP: no sparse files of 4 TiB here");
    return;
  }
  const SafetensorsReader file(path);
  CHECK(file.find("w")->shape == Shape{int64_t{1} << 40});
  std::filesystem::resize_file(path, header + 2);
  float element = 0;
  SafetensorsReader::Entry first = *file.find("w");
  first.end = first.begin + 4;
  check_parts(message_of<RunError>(
                  [&] { file.read(first, DataType::Float32, std::as_writable_bytes(std::span(&element, 1))); }),
              {"sparse: the file became shorter"});
}

TEST_CASE("safetensors: a file of another kind is called what it is") {
  TestFolder folder;
  const auto refuses = [&](const std::string& content, const std::vector<std::string>& parts) {
    const auto path = folder.write("w", content);
    check_parts(message_of<RunError>([&] { SafetensorsReader file(path); }), parts);
  };
  refuses("", {"w: expected safetensors, found an empty file"});
  refuses(std::string("PK\x03\x04\0\0\x08\x08", 8) + std::string(22, '\0') + "archive/data.pklFB",
          {"found a PyTorch checkpoint", "convert it once", "weights_only=True); d = d.get(", "contiguous() for",
           "/w.safetensors"});
  refuses(
      "\x80\x02\x8a\nl\xfc\x9c"
      "F\xf9 j\xa8P\x19.",
      {"found a PyTorch checkpoint", "save_file"});
  refuses("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", {"found a pointer of Git LFS"});
  refuses("<!DOCTYPE html><html><title>404</title></html>\n", {"found a web page"});
  refuses("\x80\x04\x95 }", {"found a Python pickle", "convert it once", "torch.load(sys.argv[1]"});
  refuses(std::string("PK\x03\x04\0\0", 6) + "arr_0.npy", {"found a zip archive"});
  refuses("\x08\x07\x12\x07pytorch:\x05", {"found an ONNX model"});
  refuses("<ir_version: 8, opset_import: [\"\" : 17]>\nnet () => () {}\n", {"found a graph file"});
  refuses("{\"weights\": [1, 2, 3]}\n", {"found JSON"});
  refuses("\x89HDF\r\n\x1a\n and more", {"found an HDF5 file"});
  check_parts(message_of<RunError>([&] { SafetensorsReader file(folder.string()); }), {"found a folder"});
}

TEST_CASE("safetensors: messages about hostile names stay short") {
  TestFolder folder;
  const std::string name(100'000, 'n');
  const auto path = folder.write("w", file_of("{\"" + name + R"(":{"dtype":"F32"}})", 0));
  CHECK(message_of<RunError>([&] { read_safetensors(path); }).size() < 1000);
  const auto torn = folder.write("torn", file_of("{\"" + name, 0));
  CHECK(message_of<RunError>([&] { read_safetensors(torn); }).size() < 1000);
}

TEST_CASE("safetensors: time grows with the number of tensors, not with its square") {
  const TestFolder folder;
  const auto seconds = [&](int tensors) {
    TensorFile file;
    for (int i = 0; i < tensors; ++i) file.tensors.push_back({"tensor " + std::to_string(i), DataType::Uint8, {0}, {}});
    double least = 0;
    for (int round = 0; round < 3; ++round) {
      const std::clock_t began = std::clock();
      write_safetensors(folder / "w", file);
      const SafetensorsReader read(folder / "w");
      const double taken = double(std::clock() - began) / CLOCKS_PER_SEC;
      least = round == 0 ? taken : std::min(least, taken);
      REQUIRE(read.entries().size() == size_t(tensors));
      CHECK(read.entries().back().name == file.tensors.back().name);  // in the order of the file
    }
    return least;
  };
  const double few = seconds(10'000), many = seconds(40'000);
  INFO(few, " s, and ", many, " s of four times as many");
  CHECK(many < 9 * few);  // their square would take 16 times as long
}

TEST_CASE("safetensors: shards are read as one file") {
  const TestFolder folder;
  const auto one = [](const std::string& name, float number) {
    return NamedTensor{name, DataType::Float32, {1}, bytes_of<float>({number})};
  };
  write_safetensors(folder / "m-1.safetensors", {{one("a", 1), one("b", 2)}, {{"format", "pt"}}});
  write_safetensors(folder / "m-2.safetensors", {{one("c", 3)}, {}});
  const std::string index = (folder / "m.safetensors.index.json").string();
  const auto read = [&](const std::string& text) {
    std::ofstream(index) << text;
    return read_safetensors(index);
  };
  const std::string sound =
      R"({"metadata": {"total_size": 12},
          "weight_map": {"c": "m-2.safetensors", "a": "m-1.safetensors", "b": "m-1.safetensors"}})";
  const TensorFile file = read(sound);
  REQUIRE(file.tensors.size() == 3);
  CHECK(file.find("a")->bytes == bytes_of<float>({1}));
  CHECK(file.find("b")->bytes == bytes_of<float>({2}));
  CHECK(file.find("c")->bytes == bytes_of<float>({3}));
  CHECK(file.metadata.at("format") == "pt");

  const auto refuses = [&](const std::string& text, const std::vector<std::string>& parts) {
    check_parts(message_of<RunError>([&] { read(text); }), parts);
  };
  refuses("{}", {"m.safetensors.index.json: index: expected an object 'weight_map'"});
  refuses("{\"weight_map\"", {"header: expected JSON"});
  refuses(R"({"weight_map": {"a": "../m-1.safetensors"}})", {"weight_map of 'a': expected a file next to the index"});
  refuses(R"({"weight_map": {"a": 3}})", {"weight_map of 'a'", "found 3"});
  refuses(R"({"weight_map": {"a": "m-3.safetensors"}})", {"m-3.safetensors: cannot be opened"});
  refuses(R"({"weight_map": {"a": "m-2.safetensors"}})", {"weight_map of 'a': expected a file that has it"});
  refuses(R"({"weight_map": {"d": "m-1.safetensors"}})", {"weight_map of 'd'"});
  write_safetensors(folder / "m-2.safetensors", {{one("a", 3), one("c", 3)}, {}});
  refuses(sound, {"m-2.safetensors: tensor 'a': expected a name that no other shard has", "m-1.safetensors"});
}

}  // namespace safetensors_test
