// Files: what errors say, atomic replacement, layouts.

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "graph/error.h"
#include "io/file.h"
#include "io/layout.h"
#include "io_test_folder.h"

using namespace arbalest;

namespace {

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string content(const std::filesystem::path& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("file: a file that is missing is reported with what is there") {
  TestFolder folder;
  folder.write("b.txt", std::string("b"));
  folder.write("a/c.txt", std::string("c"));
  CHECK(describe_folder(folder.string()) == "which holds a/, b.txt");
  CHECK(describe_folder(folder / "a/none") == "which does not exist");
  CHECK(describe_folder(folder / "b.txt") == "which is not a folder");
  check_parts(message_of<RunError>([&] { read_file(folder / "d.txt"); }), {"d.txt: cannot be opened", "b.txt"});
  check_parts(message_of<RunError>([&] { read_file(folder / "a"); }), {"cannot be read"});
}

TEST_CASE("file: replaced whole, through links too") {
  TestFolder folder;
  const std::string first = "first", second(3'000'000, 'x');
  replace_file(folder / "file", std::vector{bytes_of(first), bytes_of(first)});
  CHECK(content(folder / "file") == "firstfirst");
  replace_file(folder / "file", std::vector{bytes_of(second)});
  CHECK(content(folder / "file") == second);
  std::filesystem::create_symlink("file", folder / "link");
  replace_file(folder / "link", std::vector{bytes_of(first)});
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(content(folder / "file") == first);
  CHECK(folder.names().size() == 2);  // nothing is left behind
}

TEST_CASE("file: the old content survives a failure") {
  TestFolder folder;
  const std::string text = "old", fresh = "new";
  // A folder in the way makes the last step fail, after everything was written.
  folder.write("target/inside", text);
  check_parts(message_of<RunError>([&] { replace_file(folder / "target", std::vector{bytes_of(fresh)}); }),
              {"target: cannot be renamed"});
  CHECK(content(folder / "target/inside") == "old");
  CHECK(folder.names().size() == 1);
  check_parts(message_of<RunError>([&] { replace_file(folder / "none/file", std::vector{bytes_of(fresh)}); }),
              {"cannot be created", "which does not exist"});
}

TEST_CASE("layout: rank 4 turns channels-last and back, for every element size") {
  const Shape shape = {2, 3, 4, 5};
  for (const size_t size : {1, 2, 3, 4, 8, 16}) {
    std::vector<uint8_t> rows(size * 120), memory(rows.size()), back(rows.size());
    std::iota(rows.begin(), rows.end(), uint8_t{0});
    to_channels_last(shape, size, rows.data(), memory.data());
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
    from_channels_last(shape, size, memory.data(), back.data());
    CHECK(back == rows);
  }
}

TEST_CASE("layout: other ranks stay as they are") {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::vector<float> memory(6), back(6);
  to_channels_last({2, 3}, sizeof(float), values.data(), memory.data());
  CHECK(memory == values);
  from_channels_last({1, 2, 3}, sizeof(float), memory.data(), back.data());
  CHECK(back == values);
  to_channels_last({2, 0, 3, 3}, sizeof(float), nullptr, nullptr);  // nothing to copy
}
