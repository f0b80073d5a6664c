// SPDX-License-Identifier: Apache-2.0

// The tour in docs/tour.md works as it stands: its graph files are written, and its commands run one after the other.

#include <doctest/doctest.h>

#ifdef ARBALEST_ONNX

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using namespace arbalest::test;

namespace tour_test {
namespace {

// The text's indented blocks, without the indentation.
std::vector<std::string> blocks_of(const std::string& text) {
  std::vector<std::string> blocks;
  bool within = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.starts_with("    ");
    if (indented && !within) blocks.emplace_back();
    if (indented) blocks.back() += line.substr(4) + '\n';
    within = indented;
  }
  return blocks;
}

// A command line's words, as a shell takes them that knows no quotes but single ones.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (const char each : line) {
    if (each == '\'')
      quoted = !quoted;
    else if (each == ' ' && !quoted)
      words.emplace_back();
    else
      words.back() += each;
  }
  return words;
}

class WorkingFolder {
 public:
  explicit WorkingFolder(const std::filesystem::path& folder) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder);
  }
  ~WorkingFolder() { std::filesystem::current_path(before_); }

 private:
  const std::filesystem::path before_;
};

}  // namespace

TEST_CASE("the tour's commands run, one after the other") {
  const char* source = std::getenv("ARBALEST_SOURCE");
  REQUIRE(source);
  std::ifstream file(std::filesystem::absolute(source) / "docs/tour.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const TestFolder folder;
  const WorkingFolder working(folder.string());
  int commands = 0, graphs = 0;
  for (const std::string& block : blocks_of(text)) {
    if (block.starts_with("<ir_version")) {
      const size_t name = block.find('\n') + 1;
      std::ofstream(block.substr(name, block.find(' ', name) - name) + ".onnxtxt") << block;
      ++graphs;
    }
    std::istringstream lines(block);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("arbalest ")) continue;
      CAPTURE(line);
      const std::vector<std::string> words = words_of(line.substr(9));
      std::vector<const char*> pointers;
      for (const std::string& word : words) pointers.push_back(word.c_str());
      const Redirected output("out"), errors("errors", stderr);
      int status = kFailed;
      CHECK_NOTHROW(status = parse(pointers).run());
      CHECK(status == kDone);
      ++commands;
    }
  }
  CHECK(graphs == 2);
  CHECK(commands >= 15);
}

#endif

}  // namespace tour_test
