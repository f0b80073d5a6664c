// SPDX-License-Identifier: Apache-2.0

// Files: what errors say, layouts.

#include <doctest/doctest.h>
#include <zlib.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/files/file.h"
#include "io/formats/layout.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

TEST_CASE("file: a file that is missing is reported with what is there") {
  TestFolder folder;
  folder.write("b.txt", std::string("b"));
  folder.write("a/c.txt", std::string("c"));
  folder.write(".hidden", std::string("x"));
  CHECK(describe_folder(folder.string()) == "which holds a/, b.txt");
  CHECK(describe_folder(folder / "a/none") == "which does not exist");
  CHECK(describe_folder(folder / "b.txt") == "which is not a folder");
  check_parts(message_of<RunError>([&] { read_file(folder / "d.txt"); }), {"d.txt: cannot be opened", "b.txt"});
  check_parts(message_of<RunError>([&] { read_file(folder / "a"); }), {"cannot be read"});
}

TEST_CASE("file: text has its byte order mark and its line ends taken off, in one place") {
  TestFolder folder;
  const std::string mark = "\xef\xbb\xbf";
  const std::vector<std::string> lines = {"cat", "", "d\xc3\xb6g", mark + "x"};
  const std::string text = "cat\n\nd\xc3\xb6g\n" + mark + "x\n";  // a mark elsewhere is a character
  for (const char* end : {"\n", "\r\n", "\r"}) {
    std::string written = text;
    for (size_t at = 0; (at = written.find('\n', at)) != written.npos; at += std::string(end).size()) {
      written.replace(at, 1, end);
    }
    for (const std::string& start : {std::string(), mark}) {
      const std::string path = folder.write("text", start + written);
      CHECK(read_text(path) == text);
      CHECK(read_lines(path) == lines);
    }
  }
  CHECK(plain_text("") == "");
  CHECK(plain_text(mark) == "");
  CHECK(plain_text("\xef\xbb") == "\xef\xbb");
  CHECK(plain_text("\r") == "\n");
  CHECK(plain_text("a\n\rb\r\r\n") == "a\n\nb\n\n");
  for (const char* start : {"\xff\xfe", "\xfe\xff"}) {
    const std::string path = folder.write("wide", start + std::string("c\0", 2));
    CHECK(message_of<RunError>([&] { read_lines(path); }) == path + ": found UTF-16, expected text in UTF-8");
  }
}

TEST_CASE("file: one that is too large is refused before it is read") {
  TestFolder folder;
  const std::string path = folder.write("four", std::string("four"));
  CHECK(read_file(path, 4).size() == 4);
  CHECK(message_of<RunError>([&] { read_file(path, 3); }) == path + ": found 4 bytes or more, expected at most 3");
  CHECK(message_of<RunError>([&] { read_file("/dev/zero", 1000); }).starts_with("/dev/zero: found "));
  std::error_code error;
  std::filesystem::resize_file(path, uint64_t{100} << 30, error);
  if (error) {
    MESSAGE("SKIP: the file system has no sparse files of 100 GiB");
    return;
  }
  check_parts(message_of<RunError>([&] { read_lines(path); }), {path, "found 107374182400 bytes"});
}

TEST_CASE("layout: tensors turn channels-last and back, for every element size") {
  for (const DataType dtype : {DataType::Uint8, DataType::Bfloat16, DataType::Float32, DataType::Float64}) {
    const TensorType type = TensorType{dtype, {2, 3, 4, 5}}.in(Layout::ChannelsLast);
    const size_t size = size_of(dtype);
    std::vector<uint8_t> rows(size * 120), memory(rows.size()), back(rows.size());
    std::iota(rows.begin(), rows.end(), uint8_t{0});
    to_memory_order(type, rows.data(), memory.data());
    int wrong = 0;
    for (size_t n = 0; n < 2; ++n)
      for (size_t c = 0; c < 3; ++c)
        for (size_t h = 0; h < 4; ++h)
          for (size_t w = 0; w < 5; ++w)
            wrong += std::memcmp(&rows[(((n * 3 + c) * 4 + h) * 5 + w) * size],
                                 &memory[(((n * 4 + h) * 5 + w) * 3 + c) * size], size) != 0;
    CAPTURE(size);
    CHECK(wrong == 0);
    CHECK(memory != rows);
    to_row_major(type, memory.data(), back.data());
    CHECK(back == rows);
  }
}

TEST_CASE("layout: what is row-major stays as it is, of any rank") {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::vector<float> memory(6), back(6);
  to_memory_order({DataType::Float32, {1, 2, 3, 1}}, values.data(), memory.data());
  CHECK(memory == values);
  to_row_major({DataType::Float32, {2, 3}}, memory.data(), back.data());
  CHECK(back == values);
  const TensorType empty = TensorType{DataType::Float32, {2, 0, 3, 3}}.in(Layout::ChannelsLast);
  to_memory_order(empty, nullptr, nullptr);  // nothing to copy
  to_row_major(empty, nullptr, nullptr);
}

TEST_CASE("file: what is compressed further than data can be is refused before it fills the memory") {
  TestFolder folder;
  const std::string path = (folder / "bomb.gz").string();
  const gzFile file = gzopen(path.c_str(), "wb9");
  REQUIRE(file != nullptr);
  const std::vector<uint8_t> zeros(1 << 20);
  for (int i = 0; i < 80; ++i) REQUIRE(gzwrite(file, zeros.data(), unsigned(zeros.size())) == int(zeros.size()));
  REQUIRE(gzclose(file) == Z_OK);
  check_parts(message_of<RunError>([&] { InputFile(path).read(80 << 20, "zeros"); }),
              {"bomb.gz", "at most 64 MiB in a compressed file of this size"});
}
