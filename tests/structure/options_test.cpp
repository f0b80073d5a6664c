// SPDX-License-Identifier: Apache-2.0

// A program states by name what it wants of options, and of records such as operators. Compilers warn of the other
// members unless they have a default.

#include <doctest/doctest.h>

#include <regex>
#include <string>
#include <vector>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace options_test {
namespace {

// The members of a source's structs of options and records that have no default.
std::vector<std::string> without_default(const std::string& source) {
  static const std::regex comment("//[^\n]*"), member("^ +(?!return )[A-Za-z_][\\w:<>, *&()]*[ *>](\\w+);");
  static const std::string name = "(\\w*(Options|Rules|Sources|Spec|Scheme)|InferenceRequest|Op|Sample)";
  static const std::regex begins("^( *)struct " + name + " \\{");
  std::vector<std::string> found;
  std::string options, end;
  std::stringstream lines(std::regex_replace(source, comment, ""));
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (options.empty() && std::regex_search(line, match, begins)) {
      options = match[2];
      end = match[1].str() + "};";
    }
    if (line == end) options.clear();
    if (!options.empty() && std::regex_search(line, match, member) && match[1] != "const")
      found.push_back(options + "::" + match[1].str());
  }
  return found;
}

}  // namespace

TEST_CASE("all options, and members of records, have defaults") {
  int headers = 0;
  for (const std::string top : {"base", "graph", "io", "ops", "passes", "dsl", "executor"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (entry.path().extension() != ".h") continue;
      ++headers;
      for (const std::string& member : without_default(content(entry.path()))) {
        CHECK_MESSAGE(false, fs::relative(entry.path(), root()).string(), ": ", member,
                      " has no default; expected = {}");
      }
    }
  }
  CHECK(headers > 100);
}

TEST_CASE("an option without a default is found") {
  const std::string source =
      "struct AOptions {\n  std::vector<int> a, b;  // = 1\n  int c = 0;\n  std::string d = {};\n"
      "  bool operator==(const AOptions&) const = default;\n  std::optional<int64_t> e;\n};\nstruct B {\n  int "
      "f;\n};\n";
  CHECK(without_default(source) == std::vector<std::string>{"AOptions::b", "AOptions::e"});
}

}  // namespace options_test
