// SPDX-License-Identifier: Apache-2.0

// docs/design.md lists every folder with the folders that it may include from; here the sources are held against that
// list.

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace includes_test {
namespace {

struct Folder {
  size_t order = 0;  // of its line in the table
  std::set<std::string> uses;
};

// A line of the table: "| `executor/plan` | what it holds | `graph`, `passes` |".
std::map<std::string, Folder> read_table(const std::string& text) {
  std::map<std::string, Folder> table;
  const std::regex row(R"(\n\| `([a-z/_]+)` \| [^|\n]+ \|([^|\n]*)\|)"), name("`([a-z/_]+)`");
  for (std::sregex_iterator i(text.begin(), text.end(), row), end; i != end; ++i) {
    Folder folder{.order = table.size(), .uses = {}};
    const std::string uses = (*i)[2];
    for (std::sregex_iterator use(uses.begin(), uses.end(), name); use != end; ++use) folder.uses.insert((*use)[1]);
    CHECK_MESSAGE(table.emplace((*i)[1], folder).second, "the table lists '", (*i)[1].str(), "' twice");
  }
  return table;
}

struct Include {
  std::string file, folder, of;  // "executor/plan/plan.h" in folder "executor/plan" includes from folder `of`
};

std::vector<Include> find_includes(const std::vector<std::string>& tops) {
  std::vector<Include> found;
  const std::regex include("#include \"([^\"]+)\"");
  for (const std::string& top : tops) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const fs::path file = fs::relative(entry.path(), root());
      const std::string text = content(entry.path());
      found.push_back({file, file.parent_path(), file.parent_path()});
      for (std::sregex_iterator i(text.begin(), text.end(), include), end; i != end; ++i) {
        const fs::path folder = fs::path((*i)[1].str()).parent_path();  // none: next to the file
        found.push_back({file, file.parent_path(), folder.empty() ? file.parent_path() : folder});
      }
    }
  }
  return found;
}

const std::vector<std::string> kProduct = {"base", "graph",    "io",    "ops",     "passes",
                                           "dsl",  "executor", "tools", "examples"};

}  // namespace

TEST_CASE("includes run the way that docs/design.md says, and no other") {
  const std::string design = content(root() / "docs/design.md");
  const std::map<std::string, Folder> table = read_table(design.substr(0, design.find("\n## ")));  // before the first
  REQUIRE(table.size() > 20);
  for (const auto& [name, folder] : table) {
    for (const std::string& use : folder.uses) {
      REQUIRE_MESSAGE(table.contains(use), "'", name, "' uses '", use, "', which has no line of its own");
      CHECK_MESSAGE(table.at(use).order < folder.order, "'", use, "' stands after '", name, "', which uses it");
    }
  }
  std::map<std::string, std::set<std::string>> unused;
  for (const auto& [name, folder] : table) unused[name] = folder.uses;
  std::set<std::string> empty;
  for (const auto& [name, folder] : table) empty.insert(name);
  for (const Include& include : find_includes(kProduct)) {
    REQUIRE_MESSAGE(table.contains(include.folder), include.file, ": docs/design.md has no line for its folder");
    empty.erase(include.folder);
    if (include.of == include.folder) continue;
    CHECK_MESSAGE(table.at(include.folder).uses.contains(include.of), include.file, " includes from '", include.of,
                  "', which '", include.folder, "' may not");
    unused[include.folder].erase(include.of);
  }
  for (const std::string& name : empty) CHECK_MESSAGE(false, "'", name, "' is in the table and has no source");
  for (const auto& [name, uses] : unused) {
    for (const std::string& use : uses) CHECK_MESSAGE(false, "'", name, "' may include '", use, "' but never does");
  }
}

TEST_CASE("a folder's listing fits on a screen, files are short") {
  std::map<fs::path, int> entries;
  std::vector<int64_t> lines;
  std::vector<std::string> tops = kProduct;
  tops.push_back("tests");
  for (const std::string& top : tops) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (entry.path().filename() == "__pycache__") continue;
      ++entries[entry.path().parent_path()];
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string text = content(entry.path());
      lines.push_back(std::count(text.begin(), text.end(), '\n'));
    }
  }
  for (const auto& [folder, count] : entries) {
    CHECK_MESSAGE(count <= 32, fs::relative(folder, root()).string(), " has ", count, " entries");
  }
  std::nth_element(lines.begin(), lines.begin() + int64_t(lines.size() / 2), lines.end());
  CHECK(lines[lines.size() / 2] <= 200);
}

TEST_CASE("links between the documents and the sources lead to files and headings that are there") {
  // As GitHub makes them of headings: words in lower case, joined by hyphens, without other marks.
  const auto anchors = [](const std::string& text) {
    std::set<std::string> found;
    std::istringstream lines(text);
    bool code = false;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("```")) code = !code;
      if (code) continue;
      const size_t level = line.find_first_not_of('#');
      if (level == 0 || level == std::string::npos || line[level] != ' ') continue;
      std::string anchor;
      for (const char c : line.substr(level + 1)) {
        if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_') anchor += char(std::tolower(c));
        if (c == ' ') anchor += '-';
      }
      found.insert(anchor);
    }
    return found;
  };
  const std::regex link(R"(\]\(([^)#\s]*)(#([^)\s]+))?[^)]*\))");
  int links = 0, to_headings = 0;
  std::vector<fs::path> documents = {root() / "README.md", root() / "CONTRIBUTING.md"};
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / "docs")) {
    if (entry.path().extension() == ".md") documents.push_back(entry.path());
  }
  for (const fs::path& file : documents) {
    const std::string name = fs::relative(file, root()).string();
    const std::string text = content(file);
    for (std::sregex_iterator i(text.begin(), text.end(), link), end; i != end; ++i) {
      const std::string target = (*i)[1], heading = (*i)[3];
      if (target.starts_with("http")) continue;
      const fs::path there = target.empty() ? file : file.parent_path() / target;
      CHECK_MESSAGE(fs::exists(there), name, " links to ", target);
      ++links;
      if (heading.empty() || !fs::exists(there)) continue;
      CHECK_MESSAGE(anchors(content(there)).contains(heading), name, " links to ", target, "#", heading);
      ++to_headings;
    }
  }
  CHECK(links > 20);
  CHECK(to_headings > 5);
}

}  // namespace includes_test
