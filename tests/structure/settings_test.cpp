// SPDX-License-Identifier: Apache-2.0

// The rooms of the library name no option of the command: a program that uses them knows their fields. Both names
// stand in the table of base/setting.cpp.

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace settings_test {
namespace {

// The place after a character or string in quotes that begins at `at`.
size_t after_quoted(std::string_view text, size_t at) {
  const char quote = text[at];
  for (++at; at < text.size() && text[at] != quote; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

// The place after the next `what` from `at` on.
size_t after_next(std::string_view text, const std::string& what, size_t at) {
  const size_t found = text.find(what, at);
  return found == text.npos ? text.size() : found + what.size();
}

// The string literals of a source, without its comments.
std::vector<std::string> literals_of(std::string_view text) {
  std::vector<std::string> found;
  const auto letter = [&](size_t at) { return std::isalnum(static_cast<unsigned char>(text[at])) != 0; };
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("//")) {
      end = after_next(text, "\n", at);
    } else if (rest.starts_with("/*")) {
      end = after_next(text, "*/", at);
    } else if (rest.starts_with("R\"")) {
      end = after_next(text, ")" + std::string(rest.substr(2, rest.find('(') - 2)) + "\"", at);
      found.emplace_back(text.substr(at, end - at));
    } else if (rest.front() == '"') {
      end = after_quoted(text, at);
      found.emplace_back(text.substr(at + 1, end - at - 2));
    } else if (rest.front() == '\'' && (at == 0 || !letter(at - 1))) {
      end = after_quoted(text, at);
    } else {
      end = at + 1;
    }
  }
  return found;
}

// Whether it names an option. A whole command in quotes, 'arbalest run GRAPH --weights FILE' or a launcher's, is right
// for everybody.
bool names_option(const std::string& literal) {
  static const std::regex command("'(arbalest|srun) [^']*'"), option("(^|[^-A-Za-z0-9_])--[a-z]");
  return std::regex_search(std::regex_replace(literal, command, ""), option);
}

// Tables of names, and the options of NVRTC.
const std::set<std::string> kTables = {"base/setting.cpp", "base/other_names.cpp", "ops/cuda/compiled_kernel.cpp"};

}  // namespace

TEST_CASE("no message of the library names an option") {
  int literals = 0;
  for (const std::string top : {"base", "graph", "io", "ops", "passes", "dsl", "executor"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string file = fs::relative(entry.path(), root());
      for (const std::string& literal : literals_of(content(entry.path()))) {
        ++literals;
        const bool names = names_option(literal) && !kTables.contains(file);
        CHECK_MESSAGE(!names, file, ": \"", literal, "\" names an option; name_of() and set_to() of base/setting.h do");
      }
    }
  }
  CHECK(literals > 5000);
}

TEST_CASE("the library sets no environment variables") {
  static const std::regex sets("\\b(setenv|unsetenv|putenv|clearenv)\\b");
  CHECK(std::regex_search("  setenv(\"A\", \"0\", 0);", sets));
  int files = 0;
  for (const std::string top : {"base", "graph", "io", "ops", "passes", "dsl", "executor"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      ++files;
      CHECK_MESSAGE(!std::regex_search(content(entry.path()), sets), fs::relative(entry.path(), root()).string(),
                    ": sets an environment variable; expected the program to do so, before it has threads");
    }
  }
  CHECK(files > 500);
}

TEST_CASE("the fields that stand for settings are there") {
  std::string headers;
  for (const std::string top : {"executor", "graph"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (entry.path().extension() == ".h") headers += content(entry.path());
    }
  }
  static const std::regex row(R"re(\{SettingKey::\w+, "([^"]+)", "([^"]+)"\})re"), field(R"((\w+)::(\w+))"),
      function(R"((\w+)\(\))");
  const std::string table = content(root() / "base/setting.cpp");
  int rows = 0;
  for (std::sregex_iterator i(table.begin(), table.end(), row), end; i != end; ++i, ++rows) {
    const std::string name = (*i)[2];
    std::smatch match;
    if (std::regex_search(name, match, field)) {
      const size_t begin = headers.find("struct " + match[1].str() + " {");
      REQUIRE_MESSAGE(begin != headers.npos, name, " is in no struct");
      const std::string body = headers.substr(begin, headers.find("\n};", begin) - begin);
      CHECK_MESSAGE(std::regex_search(body, std::regex("\\b" + match[2].str() + "\\b")), name, " is no field");
    } else if (std::regex_search(name, match, function)) {
      CHECK_MESSAGE(headers.find(" " + match[1].str() + "(") != headers.npos, name, " is no function");
    } else {
      CHECK_MESSAGE(name == "arbalest " + (*i)[1].str(), name, " is neither a field nor a function");
    }
  }
  CHECK(rows > 40);
}

TEST_CASE("an option in a message is found") {
  const auto found = [](const std::string& source) {
    std::vector<std::string> names;
    for (const std::string& literal : literals_of(source)) {
      if (names_option(literal)) names.push_back(literal);
    }
    return names;
  };
  using Found = std::vector<std::string>;
  CHECK(found(R"re(fail("raise --device-timeout");)re") == Found{"raise --device-timeout"});
  CHECK(found(R"re(fail("\"--rank\"");)re") == Found{R"re(\"--rank\")re"});
  CHECK(found(R"re(if (c != '"' && d != '\'' && n > 1'000) fail("(--rank)");  // it's)re") == Found{"(--rank)"});
  CHECK(found("/* it's */ fail(R\"re(a \"b --rank)re\"); say(\"--rank\");").size() == 2);
  CHECK(found(R"re(fail("say 'arbalest run G --weights F'");  // "--save")re").empty());
  CHECK(found(R"re(--count; text = "a -- b, c---d";)re").empty());
}

}  // namespace settings_test
