// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder for sweeps of tests, and what they leave there.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"
#include "tools/sweep/sweep_log.h"

namespace sweep_test {

namespace fs = std::filesystem;
using arbalest::SweepRecord;
using arbalest::TestFolder;
using arbalest::test::Redirected;

inline constexpr const char* kGraph =
    "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
    "g () => () {\n"
    "  image, label = arbalest.Prefetch <source = \"glyphs:?train=192&test=64&size=16\", batch = 16> ()\n"
    "  x = arbalest.Augment (image)\n"
    "  hidden = arbalest.Linear <units = 32> (x)\n"
    "  active = Relu (hidden)\n"
    "  logits = arbalest.Linear <units = 10> (active)\n"
    "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
    "  accuracy = arbalest.Accuracy (logits, label)\n"
    "  trained = arbalest.Train <lr = 0.01, schedule = \"cosine\"> (loss)\n"
    "  report = arbalest.Validate <split = \"test\", batch = 32> (trained, accuracy, loss)\n"
    "}\n";

struct Place {
  const TestFolder folder;
  const std::string graph = (folder / "g.onnxtxt").string();
  const std::string out = (folder / "sweep").string();

  Place() { std::ofstream(graph) << kGraph; }

  // The status of a command line, whose lines on standard output become `lines`.
  int run(std::vector<std::string> words) {
    std::vector<const char*> all;
    for (const std::string& word : words) all.push_back(word.c_str());
    const arbalest::Command command = arbalest::test::parse(all);
    const Redirected stdout_file((folder / "out.txt").string());
    int status = 0;
    try {
      status = command.run();
    } catch (const arbalest::Error& error) {
      fault = error.what();
      status = int(error.code());
    }
    lines = stdout_file.lines();
    return status;
  }
  int sweep(std::vector<std::string> more) {
    std::vector<std::string> words = {"sweep", graph, "--deterministic", "-o", out};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  nlohmann::json json() const {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return nlohmann::json::parse(text);
  }
  SweepRecord record() const { return arbalest::read_sweep_log(arbalest::sweep_log_path(out)); }

  std::vector<std::string> lines;
  std::string fault;
};

inline std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The tensors of a file of weights, without its metadata, which names the command.
inline std::string tensors(const std::string& path) {
  const std::string all = content(path);
  REQUIRE(all.size() > 8);
  uint64_t head = 0;
  std::copy_n(all.data(), 8, reinterpret_cast<char*>(&head));
  return all.substr(8 + head);
}

}  // namespace sweep_test
