// SPDX-License-Identifier: Apache-2.0

// Two classes of one name in one namespace are one class to the linker, even if no file includes both: it keeps one
// destructor for the two. So a class that a header defines has a name of its own in its namespace.

#include <doctest/doctest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace names_test {
namespace {

// By full name, the headers that define it.
using Definitions = std::map<std::string, std::set<std::string>>;

void add_definitions(const std::string& file, const std::string& text, Definitions& definitions) {
  static const std::regex opens("^namespace ([A-Za-z0-9_:]+) \\{$"), closes("^\\}  // namespace.*$"),
      defines("^(struct|class) ([A-Za-z0-9_]+)( final)?( :.*| \\{.*)$");
  std::vector<std::string> within;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, opens)) within.push_back(match[1]);
    if (std::regex_match(line, closes) && !within.empty()) within.pop_back();
    if (!std::regex_match(line, match, defines)) continue;
    std::string name;
    for (const std::string& each : within) name += each + "::";
    definitions[name + match[2].str()].insert(file);
  }
}

}  // namespace

TEST_CASE("a class that a header defines has a name of its own") {
  // These may only become fewer. Neither class of a pair has a destructor that does something for the other.
  const std::set<std::string> pairs = {"arbalest::Cursor", "arbalest::Placement"};
  Definitions definitions;
  for (const char* room : {"base", "graph", "ops", "io", "passes", "dsl", "executor", "tools"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root() / room)) {
      const std::string ending = entry.path().extension();
      if (ending == ".h" || ending == ".cuh") add_definitions(entry.path(), content(entry.path()), definitions);
    }
  }
  CHECK(definitions.size() > 500);
  std::set<std::string> found;
  for (const auto& [name, files] : definitions) {
    if (files.size() == 1) continue;
    found.insert(name);
    INFO(name << " is defined in " << *files.begin() << " and in " << *files.rbegin());
    CHECK(pairs.contains(name));
  }
  CHECK(found == pairs);
}

TEST_CASE("a name in two namespaces is two names, and one in two headers is found") {
  Definitions definitions;
  add_definitions("a.h", "namespace one {\nstruct A {\n};\n}  // namespace one\n", definitions);
  add_definitions("b.h", "namespace one {\nnamespace two {\nclass A final : B {\n", definitions);
  CHECK(definitions.size() == 2);
  add_definitions("c.h", "namespace one {\nnamespace two {\n}  // namespace two\nclass A;\nclass A {\n", definitions);
  CHECK(definitions.at("one::A") == std::set<std::string>{"a.h", "c.h"});
}

}  // namespace names_test
