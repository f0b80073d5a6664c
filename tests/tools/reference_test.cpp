// SPDX-License-Identifier: Apache-2.0

// docs/operators.md, docs/sources.md and docs/command.md are generated from the records of operators and sources, and
// from the command line.
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
#include "io/open/open_source.h"
#include "io/open/schemes.h"
#include "ops/builtin_ops.h"
#include "tests/tools/command_line.h"
#include "tools/start/describe.h"

using namespace arbalest;
using namespace arbalest::test;

namespace reference_test {
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
  text += op.grad || op.is_layer() ? "\n" : " Gradients stop here.\n";
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
      "ONNX's operators are those of opset 7 to 28 under one form: what one version has as an attribute and another as "
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
  const Exit* exit = options_if<Exit>(command);
  REQUIRE(exit != nullptr);
  CHECK(exit->status == kDone);
  std::string text = fmt::format("## arbalest{}{}\n\n```\n{}", words.size() > 1 ? " " : "",
                                 fmt::join(words.begin(), words.end() - 1, " "), exit->text);
  while (text.back() == '\n') text.pop_back();
  return text + "\n```\n\n";
}

// The names that a help text lists as subcommands.
std::vector<std::string> subcommands_in(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream lines(text.substr(std::min(text.size(), text.find("\nSubcommands:\n"))));
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  while (std::getline(lines, line) && line.starts_with("  ")) {
    if (line[2] != ' ') names.push_back(line.substr(2, line.find(' ', 2) - 2));  // others go on with a meaning
  }
  return names;
}

// The help of a command, and of all that are below it.
std::string help_of_all(const std::vector<const char*>& words) {
  const std::string own = help(words);
  std::string text = own;
  for (const std::string& name : subcommands_in(own)) {
    if (name == "help") continue;
    std::vector<const char*> inner = words;
    inner.push_back(name.c_str());
    text += help_of_all(inner);
  }
  return text;
}

std::string command_line() {
  std::string text = fmt::format("# The command line\n\nWhat `--help` prints, command by command. {}\n", kMade);
  text += help_of_all({});
  text.pop_back();
  return text;
}

// Without the one that another test of this program registers.
std::vector<DescribedScheme> library_schemes() {
  std::vector<DescribedScheme> schemes = source_schemes();
  std::erase_if(schemes, [](const DescribedScheme& known) { return known.scheme.name == "digits"; });
  return schemes;
}

std::string sources() {
  std::string text = fmt::format(
      "# Sources\n\nThe kinds of data sets that `source` of arbalest.Prefetch, `--set prefetch.source=…` and `arbalest "
      "data …` take:\na kind, a colon, what it reads, and options after `?` with `&` between them. `arbalest sources "
      "NAME` says the same. {}\nEvery source takes `limit=N`: so many samples of each split, to try something out. "
      "With "
      "`folds=K&fold=N` training has all samples of the first split but fold N of K, and validation has that fold; "
      "`by=FIELD` keeps samples with the same value of a field in one fold.\n\n"
      "| source | data | options |\n| --- | --- | --- |\n",
      kMade);
  for (const auto& [scheme, doc] : library_schemes()) {
    std::vector<std::string> options;
    for (const SourceOption& option : doc.options) options.push_back(fmt::format("`{}`", option.name));
    text += fmt::format("| `{}:{}` | {} | {} |\n", scheme.name, doc.path, doc.text, fmt::join(options, ", "));
  }
  text += "\n";
  for (const auto& [scheme, doc] : library_schemes()) {
    text += fmt::format("## {}:{}\n\n{}. {} Splits: {}.", scheme.name, doc.path, doc.text, doc.more,
                        fmt::join(scheme.splits, ", "));
    if (!doc.example.empty()) text += fmt::format(" As in `{}`.", doc.example);
    text += doc.options.empty() ? "\n\n" : "\n\n| option | meaning | otherwise |\n| --- | --- | --- |\n";
    for (const SourceOption& option : doc.options) {
      const auto cell = [](const std::string& words) { return std::regex_replace(words, std::regex("\\|"), "\\|"); };
      text += fmt::format("| `{}={}` | {} | {} |\n", option.name, option.value, cell(option.meaning),
                          cell(option.fallback));
    }
    if (!doc.options.empty()) text += "\n";
  }
  text.pop_back();
  return text;
}

std::filesystem::path root() {
  const char* source = std::getenv("ARBALEST_SOURCE");
  return source ? source : ".";
}

std::string content(const std::filesystem::path& path) {
  std::ostringstream found;
  found << std::ifstream(path).rdbuf();
  return found.str();
}

void check_page(const std::string& name, const std::string& expected) {
  const std::filesystem::path path = root() / "docs" / name;
  if (std::getenv("ARBALEST_UPDATE_GOLDEN")) std::ofstream(path) << expected;
  CHECK_MESSAGE(content(path) == expected, path.string(),
                " is not current: set ARBALEST_UPDATE_GOLDEN=1 once, and read the difference");
}

}  // namespace

TEST_CASE("the reference of operators is current") {
  check_page("operators.md", operators());
}

TEST_CASE("the reference of sources is current") {
  check_page("sources.md", sources());
}

TEST_CASE("every source says what it holds, and every option what it means") {
  for (const auto& [scheme, doc] : library_schemes()) {
    CAPTURE(scheme.name);
    CHECK(!doc.text.empty());
    CHECK(scheme.needs_path == !doc.path.empty());
    if (scheme.name != "memory") CHECK(doc.example.starts_with(scheme.name + ":"));
    for (const SourceOption& option : doc.options) {
      CAPTURE(option.name);
      CHECK(!option.meaning.empty());
      CHECK(!option.value.empty());
      CHECK(describe_sources(scheme.name).find("    " + option.name + "=" + option.value) != std::string::npos);
    }
    CHECK(describe_sources("").find(scheme.name + ":" + doc.path) != std::string::npos);
  }
  // The documented defaults of options are the real ones.
  for (const std::string scheme : {"glyphs", "synthetic"}) {
    CAPTURE(scheme);
    std::string stated = scheme + ":";
    for (const auto& known : library_schemes()) {
      if (known.scheme.name != scheme) continue;
      for (const SourceOption& option : known.doc.options) {
        if (option.fallback.find_first_not_of("0123456789x") != std::string::npos || option.fallback.empty()) continue;
        stated += (stated.ends_with(':') ? "?" : "&") + option.name + "=" + option.fallback;
      }
    }
    CHECK(stated.find('&') != std::string::npos);
    for (const char* split : {"train", "test"}) {
      const auto plain = open_source(scheme + ":", split, 1), told = open_source(stated, split, 1);
      CHECK(plain->size() == told->size());
      CHECK(to_string(plain->fields()) == to_string(told->fields()));
    }
  }
  CHECK_THROWS_WITH_AS(describe_sources("imagefolder"), doctest::Contains("did you mean 'folder'?"), GraphError);
  CHECK(describe_sources("csv:x.csv?labels=*") == describe_sources("csv"));
}

TEST_CASE("the reference of the command line is current") {
  check_page("command.md", command_line());
}

}  // namespace reference_test
