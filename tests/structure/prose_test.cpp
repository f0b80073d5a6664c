// Comments say what things are: none begins with a word that only points at something left out, as in "Of a raster in
// shared memory". Only what a program can see is checked; whether a comment is plain, a reader decides.

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace prose_test {
namespace {

constexpr std::array<std::string_view, 6> kOpenings = {"Of", "What", "Likewise", "Where", "Whoever", "Whatever"};
constexpr size_t kMostColumns = 120;

bool opens_so(std::string_view text) {
  for (const std::string_view opening : kOpenings) {
    if (text.starts_with(opening) && (text.size() == opening.size() || text[opening.size()] == ' ')) return true;
  }
  return false;
}

// The text of a comment that begins in the line: the whole line, after a line without one, or its end. "": there is
// none.
std::string_view comment_begun(std::string_view line, bool goes_on) {
  const size_t begin = line.find_first_not_of(' ');
  if (begin == line.npos) return "";
  if (line.substr(begin).starts_with("//")) return goes_on ? "" : line.substr(std::min(begin + 3, line.size()));
  const size_t behind = line.find("  // ");
  return behind == line.npos ? "" : line.substr(behind + 5);
}

size_t columns(std::string_view line) {
  size_t count = 0;
  for (const char c : line) count += (static_cast<unsigned char>(c) & 0xC0) == 0x80 ? 0 : 1;  // UTF-8
  return count;
}

struct Findings {
  std::vector<std::string> openings, long_lines;  // "LINE: TEXT"
};

Findings look_at(const std::string& text) {
  Findings found;
  std::istringstream lines(text);
  bool in_comment = false;
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (opens_so(comment_begun(line, in_comment))) found.openings.push_back(std::to_string(number) + ": " + line);
    const size_t begin = line.find_first_not_of(' ');
    in_comment = begin != line.npos && std::string_view(line).substr(begin).starts_with("//");
    if (in_comment && columns(line) > kMostColumns) found.long_lines.push_back(std::to_string(number) + ": " + line);
  }
  return found;
}

}  // namespace

TEST_CASE("no comment begins with a word that points at something left out, or is wider than 120 columns") {
  int files = 0;
  for (const std::string top : {"base", "examples", "executor", "graph", "io", "ops", "tests", "tools"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      const bool source = is_source(entry.path()) || entry.path().extension() == ".js";
      if (!entry.is_regular_file() || !source || entry.path().filename() == "prose_test.cpp") continue;
      const std::string name = fs::relative(entry.path(), root()).string();
      const Findings found = look_at(content(entry.path()));
      for (const std::string& line : found.openings) CHECK_MESSAGE(false, name, ":", line);
      for (const std::string& line : found.long_lines) CHECK_MESSAGE(false, name, ":", line);
      ++files;
    }
  }
  CHECK(files > 500);
}

TEST_CASE("a comment that begins so is found") {
  CHECK(look_at("// Of a raster.\nint a;\n").openings.size() == 1);
  CHECK(look_at("int a;  // What is left.\n").openings.size() == 1);
  CHECK(look_at("// The tile,\n// Where it begins.\n").openings.empty());
  CHECK(look_at("// Offsets in bytes.\nint b;  // Where\n").openings.size() == 1);
  CHECK(look_at("// " + std::string(118, 'x') + "\n// " + std::string(117, 'x') + "\n").long_lines.size() == 1);
}

}  // namespace prose_test
