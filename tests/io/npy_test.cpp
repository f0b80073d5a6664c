// SPDX-License-Identifier: Apache-2.0

// The source npy: fields from NumPy's arrays.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>

#include "base/error.h"
#include "io/formats/npy.h"
#include "io/open/open_source.h"
#include "io/sources/source.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace npy_test {
namespace {

// A file of NumPy's, with any header.
std::string npy(const std::string& dictionary, const std::string& data, int version = 1) {
  std::string file = std::string("\x93NUMPY") + char(version) + '\0';
  const size_t length = dictionary.size() + 1;
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file += char(length >> (8 * i) & 255);
  return file + dictionary + "\n" + data;
}

template <typename T>
std::string npy(const std::string& descr, const std::string& shape, const std::vector<T>& values, int version = 1) {
  return npy("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }",
             std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)), version);
}

std::string error_of(const std::string& bytes) {
  const TestFolder folder;
  const auto path = folder.write("a.npy", bytes);
  return message_of<RunError>([&] { read_npy(path); });
}

std::unique_ptr<Source> open(const TestFolder& folder, const std::string& options = "", const char* split = "train") {
  return open_source("npy:" + folder.string() + options, split, 1);
}

}  // namespace

TEST_CASE("npy: arrays of all versions and types") {
  const TestFolder folder;
  for (const int version : {1, 2, 3}) {
    const auto path = folder.write("a.npy", npy<int32_t>("<i4", "(2, 3)", {1, 2, 3, 4, 5, -6}, version));
    const NpyArray array = read_npy(path);
    CHECK(array.dtype == DataType::Int32);
    CHECK(array.shape == Shape{2, 3});
    REQUIRE(array.bytes.size() == 24);
    int32_t last = 0;
    std::memcpy(&last, array.bytes.data() + 20, sizeof last);
    CHECK(last == -6);
  }
  const auto type_of = [&](const std::string& bytes) { return read_npy(folder.write("a.npy", bytes)).dtype; };
  CHECK(type_of(npy<uint8_t>("|u1", "(2,)", {1, 2})) == DataType::Uint8);
  CHECK(type_of(npy<int64_t>("<i8", "(2,)", {1, 2})) == DataType::Int64);
  CHECK(type_of(npy<float>("<f4", "(2,)", {1, 2})) == DataType::Float32);
  CHECK(type_of(npy<double>("<f8", "()", {1})) == DataType::Float64);
  CHECK(read_npy(folder.write("a.npy", npy("{'shape':(0,4),'fortran_order':False,'descr':'<f4'}", ""))).bytes.empty());
}

TEST_CASE("npy: other arrays and other files are refused") {
  const std::string four = std::string(4, 'x');
  check_parts(error_of(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", four)),
              {"a.npy: expected an array in C's order", "found one in Fortran's"});
  const auto refused = [&](const std::string& descr) {
    return error_of(npy("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (1,), }", four));
  };
  check_parts(refused("|O"),
              {"a.npy: expected whole numbers, floats or booleans, found '|O', which are Python's objects; "
               "in NumPy: numpy.stack(list(array))"});
  check_parts(refused("<U1"), {"'<U1', which is text; in NumPy: numpy.unique(labels, return_inverse=True)[1]"});
  check_parts(refused("<c8"), {"'<c8', which are complex numbers; in NumPy: abs(array)"});
  check_parts(refused("<f16"), {"'<f16'; in NumPy: array.astype('float32')"});
  check_parts(refused("f4"), {"expected whole numbers, floats"});
  check_parts(refused("f"), {"expected a header as in"});
  check_parts(error_of(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", four)),
              {"found an array of records; in NumPy: array['NAME']"});
  check_parts(error_of(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", four)),
              {"expected (2) elements of float32 from byte ", "found 4 bytes"});
  check_parts(error_of(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", four + "x")),
              {"found 5 bytes"});
  check_parts(
      error_of(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296), }", four)),
      {"found 4 bytes"});
  for (const char* header :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", "{'descr': '<f4",
        "{'descr': '<f4', 'fortran_order': No, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}"})
    check_parts(error_of(npy(header, four)), {"expected a header as in {'descr': '<f4', 'fortran_order': False"});
  check_parts(error_of(npy("{}", "", 4)), {"expected version 1, 2 or 3, found 4"});
  check_parts(
      error_of("PK\x03\x04 a .npz file"),
      {"expected an array of NumPy's (.npy), found an archive of several (.npz); python3 -c \"import numpy; a = "});
  check_parts(error_of("GIF89a and more"), {"expected an array of NumPy's (.npy), found another kind of file"});
  check_parts(error_of("\x93NUM"), {"expected 8 bytes of an array of NumPy's at byte 0, found a file of 4 bytes"});
  const std::string good = npy<float>("<f4", "(1,)", {1});
  check_parts(error_of(good.substr(0, 9)), {"expected 2 bytes of a length at byte 8, found a file of 9 bytes"});
  check_parts(error_of(good.substr(0, 30)), {" bytes of a header at byte 10, found a file of 30 bytes"});
}

TEST_CASE("npy: types that graphs lack, and arrays of the other byte order, are read as what holds them") {
  const TestFolder folder;
  const auto read = [&](const std::string& bytes) { return read_npy(folder.write("a.npy", bytes)); };
  const auto bytes_of = [](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const auto is = [&](const NpyArray& array, DataType type, const auto& values) {
    CHECK(array.dtype == type);
    CHECK(array.bytes == bytes_of(values));
  };
  using Ints = std::vector<int32_t>;
  is(read(npy<int8_t>("|i1", "(2,)", {-1, 5})), DataType::Int32, Ints{-1, 5});
  is(read(npy<int16_t>("<i2", "(2,)", {-300, 5})), DataType::Int32, Ints{-300, 5});
  is(read(npy<uint16_t>("<u2", "(2,)", {65535, 5})), DataType::Int32, Ints{65535, 5});
  is(read(npy<uint32_t>("<u4", "(1,)", {4294967295u})), DataType::Int64, std::vector<int64_t>{4294967295});
  is(read(npy<uint64_t>("<u8", "(1,)", {7})), DataType::Int64, std::vector<int64_t>{7});
  is(read(npy<uint8_t>("|b1", "(2,)", {1, 0})), DataType::Uint8, std::vector<uint8_t>{1, 0});
  is(read(npy<uint16_t>("<f2", "(2,)", {0x3c00, 0xc100})), DataType::Float32, std::vector<float>{1, -2.5f});
  is(read(npy<uint8_t>(">i2", "(2,)", {0xff, 0xfe, 0, 3})), DataType::Int32, Ints{-2, 3});
  is(read(npy<uint8_t>(">f4", "(1,)", {0x3f, 0x80, 0, 0})), DataType::Float32, std::vector<float>{1});
  check_parts(error_of(npy<uint64_t>("<u8", "(1,)", {uint64_t{1} << 63})),
              {"expected numbers below 2^63, found a greater one; in NumPy: array.astype('float64')"});
}

TEST_CASE("npy: labels of any whole type, images of wide ones and booleans become what graphs take") {
  const TestFolder folder;
  const auto fields = [&](const std::string& image, const std::string& label) {
    folder.write("images_train.npy", image);
    folder.write("labels_train.npy", label);
    return to_string(open(folder, "?classes=5")->fields());
  };
  const std::string plain = npy("|u1", "(2, 1, 1, 2)", std::vector<uint8_t>{0, 1, 2, 255});
  const std::string expected = "image uint8[1,1,2], label int32[] of 5 classes";
  CHECK(fields(plain, npy<uint8_t>("|u1", "(2,)", {4, 1})) == expected);
  CHECK(fields(plain, npy<int16_t>("<i2", "(2, 1)", {4, 1})) == expected);
  CHECK(fields(plain, npy<uint8_t>(">i8", "(2,)", {0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1})) == expected);
  const auto source = open(folder, "?classes=5");
  int32_t label = 0;
  std::byte* const places[] = {nullptr, reinterpret_cast<std::byte*>(&label)};
  const SampleRef first[] = {{0, 0, 0}};
  source->fill(first, places);
  CHECK(label == 4);
  const std::string labels = npy<int64_t>("<i8", "(2,)", {4, 1});
  CHECK(fields(npy<int64_t>("<i8", "(2, 1, 1, 2)", {0, 1, 2, 255}), labels) == expected);
  CHECK(fields(npy<uint16_t>("<u2", "(2, 1, 1, 2)", {0, 1, 2, 256}), labels).starts_with("image int32[1,1,2]"));
  CHECK(fields(npy<uint8_t>("|b1", "(2, 1, 1, 2)", {0, 1, 1, 0}), labels).starts_with("image float[1,1,2]"));
  CHECK(open(folder)->describe().ends_with("; image is bool in its file, read as float"));
  CHECK(fields(npy<uint16_t>("<f2", "(2, 1, 1, 2)", {0, 1, 1, 0}), labels).starts_with("image float[1,1,2]"));
  CHECK(fields(plain, npy<uint8_t>("|b1", "(2, 3)", {0, 1, 1, 0, 0, 0})).ends_with("label float[3]"));
  folder.write("image_train.npy", plain);  // if both are there they are two fields
  CHECK(to_string(open(folder)->fields()) == "image uint8[1,1,2], images uint8[1,1,2], label float[3]");
}

TEST_CASE("npy: an archive of arrays is refused with what makes files of it") {
  const TestFolder folder;
  const auto path = folder.write("mine.npz", std::string("PK"));
  for (const std::string& given : {folder.string(), path.string()}) {
    check_parts(message_of<RunError>([&] { open_source("npy:" + given, "train", 1); }),
                {"train_FIELD.npy and FIELD_train.npy",
                 "; archives (.npz) are not read, and python3 -c \"import numpy; a = "
                 "numpy.load('" +
                     path.string() + "'); [numpy.save('" + folder.string() +
                     "/' + name, a[name]) for name in a]\" makes files of its arrays, to be called SPLIT_FIELD.npy"});
  }
}

TEST_CASE("npy: a folder of arrays for each split, or their names before the fields'") {
  std::vector<uint8_t> planes(24);
  for (size_t i = 0; i < planes.size(); ++i) planes[i] = uint8_t(i);
  for (const char* separator : {"/", "_"}) {
    const TestFolder folder;
    const std::string train = std::string("train") + separator;
    folder.write(train + "image.npy", npy("|u1", "(2, 2, 2, 3)", planes));
    folder.write(train + "label.npy", npy<int64_t>("<i8", "(2,)", {4, 1}));
    folder.write(train + "weight.npy", npy<float>("<f4", "(2, 2)", {0.5f, 1.5f, 2.5f, 3.5f}));
    folder.write(std::string("validation") + separator + "x.npy", npy<float>("<f4", "(3,)", {1, 2, 3}));
    folder.write("notes.txt", std::string("no"));
    const auto source = open(folder, "?classes=5");
    CHECK(to_string(source->fields()) == "image uint8[2,2,3], label int32[] of 5 classes, weight float[2]");
    CHECK(source->size() == 2);
    const SampleRef second[] = {{1, 0, 0}};
    std::vector<uint8_t> image(12);
    int32_t label = 0;
    float weight[2] = {};
    std::byte* const fields[] = {reinterpret_cast<std::byte*>(image.data()), reinterpret_cast<std::byte*>(&label),
                                 reinterpret_cast<std::byte*>(weight)};
    source->fill(second, fields);
    CHECK(image == std::vector<uint8_t>{12, 18, 13, 19, 14, 20, 15, 21, 16, 22, 17, 23});  // channels last
    CHECK(label == 1);
    CHECK(weight[1] == 3.5f);
    CHECK(open(folder, "", "validation")->size() == 3);
    check_parts(message_of<RunError>([&] { open(folder, "", "test"); }),
                {"looked for test/FIELD.npy, test_FIELD.npy and FIELD_test.npy in '" + folder.string(),
                 "which holds notes.txt"});
    check_parts(message_of<GraphError>([&] { open(folder, "?classes=4"); }), {"field 'label' of sample 0 is 4"});
    folder.write(train + "label.npy", npy<int64_t>("<i8", "(3,)", {4, 1, 2}));
    check_parts(message_of<GraphError>([&] { open(folder); }), {"field 'image' holds 2 samples, field 'label' 3"});
    folder.write(train + "label.npy", npy<int64_t>("<i8", "()", {4}));
    check_parts(message_of<RunError>([&] { open(folder); }),
                {"tensor 'label' is int64[], expected samples along its first"});
  }
}

TEST_CASE("npy: doubles are read as floats, and said to be") {
  const TestFolder folder;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  folder.write("train/x.npy", npy<double>("<f8", "(2, 3)", {0.1, -2.5, 1e-50, 3e38, -kInfinity, std::nan("")}));
  folder.write("train/label.npy", npy<int64_t>("<i8", "(2,)", {4, 1}));
  const auto source = open(folder, "?classes=5");
  CHECK(to_string(source->fields()) == "label int32[] of 5 classes, x float[3]");
  CHECK(
      source->describe().ends_with("2 samples of label int32[] of 5 classes, x float[3]; x is double in its file, read "
                                   "as float"));
  float x[6] = {};
  const SampleRef both[] = {{0, 0, 0}, {1, 0, 1}};
  std::byte* const fields[] = {nullptr, reinterpret_cast<std::byte*>(x)};
  source->fill(both, fields);
  CHECK(x[0] == 0.1f);
  CHECK(x[1] == -2.5f);
  CHECK(x[2] == 0);
  CHECK(x[3] == 3e38f);
  CHECK(x[4] == -float(kInfinity));
  CHECK(std::isnan(x[5]));
  folder.write("train/x.npy", npy<double>("<f8", "(2, 2)", {0, 1, 2, 1e39}));
  check_parts(message_of<RunError>([&] { open(folder); }),
              {"train/x.npy: element 1 of sample 1 of tensor 'x' is 1e+39, which a float does not hold"});
}

TEST_CASE("npy: what NumPy itself writes") {
  const TestFolder folder;
  const std::string command = "cd '" + folder.string() +
                              "' && python3 -c \"import numpy as n; "
                              "n.save('train_x.npy', n.arange(12, dtype=n.float64).reshape(4, 3)); n.save('f.npy', "
                              "n.ones((2, 3)).T)\" 2>/dev/null";
  if (std::system(command.c_str()) != 0) {
    MESSAGE("SKIP: no NumPy");
    return;
  }
  CHECK(to_string(open(folder)->fields()) == "x float[3]");
  check_parts(message_of<RunError>([&] { read_npy(folder / "f.npy"); }), {"found one in Fortran's"});
}

}  // namespace npy_test
