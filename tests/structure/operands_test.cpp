// SPDX-License-Identifier: Apache-2.0

// Operands go by names that the compiler knows, and so do operators outside the room that defines them: a wrong number
// would compile, and a misspelt name would only match nothing.

#include <doctest/doctest.h>

#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace operands_test {
namespace {

// Lines of `text` that a pattern finds, without their comments: "FILE:LINE: CODE".
std::vector<std::string> lines_with(const std::regex& pattern, const std::string& file, const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = line.substr(0, line.find("//"));
    if (std::regex_search(line, pattern)) found.push_back(file + ":" + std::to_string(number) + ":" + line);
  }
  return found;
}

// Places of operands that are numbers of these digits: inputs[2], node.input(1), rewriter.set_output(n, 1, …),
// input<float>(c, 3).
std::regex bare_places(const std::string& digits) {
  const std::string number = digits + "[0-9]*";
  return std::regex(
      "\\b(in|out)puts\\[" + number +
      "\\]|\\b((set|has|floating|number|truth|expect|replace)_)?(in|out)put(_gradient|_name|_spec|_type)?(<[^()]*>)?" +
      "\\((([^(){};]|\\([^()]*\\))*, )?" + number + "[,)]|\\bneeds_gradient\\(" + number + "\\)");
}

// A text that may be the name of an operator: "Relu", "arbalest.Linear". Attributes' values are capitals throughout.
const std::regex kOperatorName("\"(arbalest\\.)?[A-Z]+[a-z][A-Za-z]*\"");

// A text that is one: docs/operators.md has a heading for each operator that graph files may use, and the others are
// the library's own.
std::regex operator_names() {
  const std::string page = content(root() / "docs/operators.md");
  const std::regex heading("### ([A-Za-z0-9.]+)\n");
  std::string names = "arbalest\\.[A-Z][A-Za-z0-9]*";
  for (std::sregex_iterator i(page.begin(), page.end(), heading), end; i != end; ++i) names += "|" + (*i)[1].str();
  return std::regex("\"(" + names + ")\"");
}

// Files that rewrite what a graph file states: operators are text there, and graph/names.h.
bool has_operators_as_text(const std::string& line) {
  for (const char* file :
       {"file/float_types.cpp", "file/model_call.cpp", "file/nested_graphs.cpp", "file/onnx_file_reader.cpp",
        "file/sequences.cpp", "names.h", "samples/batch_changes.cpp", "samples/open_batch.cpp"}) {
    if (line.starts_with(std::string("graph/") + file + ":")) return true;
  }
  return false;
}

std::vector<std::string> in_folder(const std::string& folder, const std::regex& pattern, size_t least = 40) {
  std::vector<std::string> found;
  size_t files = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / folder)) {
    if (!entry.is_regular_file() || !is_source(entry.path())) continue;
    ++files;
    const std::vector<std::string> lines =
        lines_with(pattern, fs::relative(entry.path(), root()).string(), content(entry.path()));
    found.insert(found.end(), lines.begin(), lines.end());
  }
  CHECK(files >= least);
  return found;
}

}  // namespace

TEST_CASE("operands in passes have names") {
  for (const std::string& line : in_folder("passes", bare_places("[0-9]"))) {
    CHECK_MESSAGE(false, line,
                  ": an operand by its number; expected a name from the operator's header, or input() and ",
                  "output() for the first");
  }
}

TEST_CASE("operands after the first have names in kernels and in the executor") {
  for (const char* room : {"ops", "executor"}) {
    for (const std::string& line : in_folder(room, bare_places("[1-9]"))) {
      CHECK_MESSAGE(false, line, ": an operand by its number; expected a name from the operator's header");
    }
  }
}

TEST_CASE("passes take the names of operators from ops/names.h") {
  for (const std::string& line : in_folder("passes", kOperatorName)) {
    CHECK_MESSAGE(false, line, ": an operator's name as text; expected a constant of ops/names.h");
  }
}

TEST_CASE("the other rooms have operators as facts of their records or by constants") {
  const std::regex names = operator_names();
  size_t in_reader = 0;
  for (const auto& [room, files] : {std::pair("graph", 40), {"dsl", 2}, {"executor", 40}, {"tools", 40}}) {
    for (const std::string& line : in_folder(room, names, size_t(files))) {
      if (has_operators_as_text(line)) {
        ++in_reader;
        continue;
      }
      CHECK_MESSAGE(false, line,
                    ": an operator's name as text; expected a constant of ops/names.h or graph/names.h, or in graph/ ",
                    "a fact of the operator's record (Op)");
    }
  }
  CHECK(in_reader > 10);
}

TEST_CASE("every name of ops/names.h and graph/names.h is used outside ops") {
  std::set<std::string> used;
  const std::regex use("\\bop::(\\w+)"), name("(\\w+) = \"");
  for (const auto& [room, files] :
       {std::pair("graph", 40), {"passes", 40}, {"dsl", 2}, {"executor", 40}, {"tools", 40}}) {
    for (const std::string& line : in_folder(room, use, size_t(files))) {
      for (std::sregex_iterator i(line.begin(), line.end(), use), end; i != end; ++i) used.insert((*i)[1]);
    }
  }
  for (const char* file : {"ops/names.h", "graph/names.h"}) {
    const std::string names = content(root() / file);
    for (std::sregex_iterator i(names.begin(), names.end(), name), end; i != end; ++i) {
      CHECK_MESSAGE(used.contains((*i)[1]), (*i)[1].str(), " of ", file, " is used nowhere");
    }
  }
  CHECK(used.size() > 80);
}

TEST_CASE("operands by their numbers and operators by their text are found in a source") {
  const std::string source = R"(
const ValueId x = node.inputs[0], w = node.inputs[ConvInput::W], y = node.output(), z = axes_of(node.input(), 1);
const ValueId scale = rewriter_.input(norm, 2);  // inputs[2]
rewriter_.set_input(norm, BatchNormInput::Scale, scales[1]);
const float* bias = request.has_input(2) ? input<float>(c, In::Bias) : nullptr;
input<std::vector<float>>(c, 12);
c.set_input_gradient(1, c.add("Neg", "grad_b", {dy}, 1)[0]);
if (node.is("arbalest.Linear") || mode == "VALID") return rewriter_.producer(x, op::Relu);
)";
  const auto numbers = [&](const std::regex& pattern) {
    std::vector<int> found;
    for (const std::string& line : lines_with(pattern, "a", source)) found.push_back(std::stoi(line.substr(2)));
    return found;
  };
  CHECK(numbers(bare_places("[0-9]")) == std::vector<int>{2, 3, 5, 6, 7});
  CHECK(numbers(bare_places("[1-9]")) == std::vector<int>{3, 5, 6, 7});
  CHECK(numbers(kOperatorName) == std::vector<int>{7, 8});
}

}  // namespace operands_test
