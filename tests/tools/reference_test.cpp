// docs/operators.md and docs/command.md are made of the operators' records and of the command line.
//
// After a change of either: ARBALEST_UPDATE_GOLDEN=1 build/tests/test_tools -tc='*reference*', then read the
// difference.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "graph/op.h"
#include "tests/tools/command_line.h"

using namespace arbalest;
using namespace arbalest::test;

namespace {

constexpr const char* kMade =
    "This page is made by `ARBALEST_UPDATE_GOLDEN=1 build/tests/test_tools -tc='*reference*'`.\n";

std::string listed(const std::vector<OperandSpec>& operands) {
  std::vector<std::string> names;
  for (const OperandSpec& operand : operands) {
    const char* arity = operand.arity == OperandSpec::Optional   ? " (optional)"
                        : operand.arity == OperandSpec::Variadic ? " (one or more)"
                                                                 : "";
    names.push_back(fmt::format("`{}`{}", operand.name, arity));
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

std::string section(const Op& op) {
  std::string text = fmt::format("### {}\n\n{}. Inputs: {}. Outputs: {}.", op.qualified_name(), op.doc,
                                 listed(op.inputs), listed(op.outputs));
  text += op.grad || op.expand ? "\n" : " Gradients stop here.\n";
  if (!op.attributes.empty()) text += "\n| attribute | type | default | |\n| --- | --- | --- | --- |\n";
  for (const AttributeSpec& attribute : op.attributes) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", attribute.name, name_of(attribute.kind),
                        attribute.fallback ? fmt::format("`{}`", to_string(*attribute.fallback)) : "required",
                        std::regex_replace(attribute.doc, std::regex("\\|"), "\\|"));
  }
  return text + "\n";
}

std::string operators() {
  std::vector<const Op*> all;
  for (const Op& op : builtin_ops().all()) {
    if (!op.internal && (op.domain.empty() || op.domain == "arbalest")) all.push_back(&op);
  }
  std::sort(all.begin(), all.end(), [](const Op* a, const Op* b) { return a->name < b->name; });
  std::string text = fmt::format(
      "# Operators\n\nWhat graph files may use; `arbalest ops NAME` says the same. {}\n"
      "ONNX's operators are those of opset 7 to 22 under one form: what one version has as an attribute and another as "
      "an\n"
      "operand may be given either way, as an operand whose content is known when the graph is read.\n",
      kMade);
  for (const char* domain : {"arbalest", ""}) {
    text += *domain ? "\n## Layers, data, losses, metrics and training\n\n" : "## ONNX's\n\n";
    for (const Op* op : all) {
      if (op->domain == domain) text += section(*op);
    }
  }
  text.pop_back();
  return text;
}

std::string help(std::vector<const char*> words) {
  words.push_back("--help");
  const Command command = parse(words);
  const Exit* exit = std::get_if<Exit>(&command);
  REQUIRE(exit != nullptr);
  CHECK(exit->status == kDone);
  std::string text = fmt::format("## arbalest{}{}\n\n```\n{}", words.size() > 1 ? " " : "",
                                 fmt::join(words.begin(), words.end() - 1, " "), exit->text);
  while (text.back() == '\n') text.pop_back();
  return text + "\n```\n\n";
}

std::string command_line() {
  std::string text = fmt::format("# The command line\n\nWhat `--help` prints, command by command. {}\n", kMade);
  text += help({});
  for (const char* command : {"run", "resume", "evaluate", "predict", "export", "check", "plan", "trace", "view",
                              "report", "profile", "ops"}) {
    text += help({command});
  }
  text += help({"bench", "scaling"});
  text += help({"bench", "tracing"});
  text += help({"data"});
  text += help({"data", "pack"});
  text.pop_back();
  return text;
}

void check_page(const std::string& name, const std::string& expected) {
  const char* root = std::getenv("ARBALEST_SOURCE");
  const std::filesystem::path path = std::filesystem::path(root ? root : ".") / "docs" / name;
  if (std::getenv("ARBALEST_UPDATE_GOLDEN")) std::ofstream(path) << expected;
  std::ostringstream found;
  found << std::ifstream(path).rdbuf();
  CHECK_MESSAGE(found.str() == expected, path.string(),
                " is not current: set ARBALEST_UPDATE_GOLDEN=1 once, and read the difference");
}

}  // namespace

TEST_CASE("the reference of operators is current") {
  check_page("operators.md", operators());
}

TEST_CASE("the reference of the command line is current") {
  check_page("command.md", command_line());
}
