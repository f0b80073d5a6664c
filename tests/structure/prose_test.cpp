// SPDX-License-Identifier: Apache-2.0

// Comments say what things are: none begins with a word that only points at something left out, as in "Of a raster in
// shared memory". Messages keep to the same. Comments, scripts and documents have plain words and lines of at most 120
// columns, documents and decisions sentences of at most 30 words. Only what a program can see is checked; whether a
// text is plain, a reader decides.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace prose_test {
namespace {

constexpr std::array<std::string_view, 6> kOpenings = {"Of", "What", "Likewise", "Where", "Whoever", "Whatever"};
// Plain ones are: next to, while, reported, in the same way, in turn, cannot be allocated, follows from, if.
constexpr std::array<std::string_view, 12> kUnclear = {"beside",   "is told", "are told",         "was told",
                                                       "likewise", "whoever", "by turns",         "to be had",
                                                       "comes of", "come of", "grapherror where", "runerror where"};
constexpr size_t kMostColumns = 120, kMostWords = 30;

bool opens_so(std::string_view text) {
  for (const std::string_view opening : kOpenings) {
    if (text.starts_with(opening) && (text.size() == opening.size() || text[opening.size()] == ' ')) return true;
  }
  return false;
}

// The text of a comment that begins in the line: the whole line, after a line without one, or its end. "": there is
// none.
std::string_view comment_begun(std::string_view line, bool goes_on, std::string_view mark) {
  const size_t begin = line.find_first_not_of(' '), text = mark.size() + 1;
  if (begin == line.npos) return "";
  if (line.substr(begin).starts_with(mark)) return goes_on ? "" : line.substr(std::min(begin + text, line.size()));
  const size_t behind = line.find("  " + std::string(mark) + " ");
  return behind == line.npos ? "" : line.substr(behind + 2 + text);
}

size_t columns(std::string_view line) {
  size_t count = 0;
  for (const char c : line) count += (static_cast<unsigned char>(c) & 0xC0) == 0x80 ? 0 : 1;  // UTF-8
  return count;
}

// The comment that ends the line; "": there is none.
std::string_view comment_in(std::string_view line, std::string_view mark) {
  const size_t begin = line.find_first_not_of(' ');
  if (begin != line.npos && line.substr(begin).starts_with(mark)) return line.substr(begin);
  const size_t at = line.find("  " + std::string(mark) + " ");
  return at == line.npos ? "" : line.substr(at);
}

// Whether the text, apart from code in backticks, has one of the unclear words.
bool is_unclear(std::string_view text) {
  std::string plain;
  bool code = false;
  for (const char c : text) {
    code = code != (c == '`');
    if (!code) plain += char(std::tolower(static_cast<unsigned char>(c)));
  }
  const auto is_letter = [&](size_t i) {
    return i < plain.size() && (std::isalnum(static_cast<unsigned char>(plain[i])) != 0 || plain[i] == '_');
  };
  return std::any_of(kUnclear.begin(), kUnclear.end(), [&](std::string_view word) {
    for (size_t at = plain.find(word); at != plain.npos; at = plain.find(word, at + 1)) {
      if (!(at > 0 && is_letter(at - 1)) && !is_letter(at + word.size())) return true;
    }
    return false;
  });
}

struct Findings {
  std::vector<std::string> openings, unclear, long_lines, long_sentences;  // "LINE: TEXT"
};

// The texts in quotes of a line of code.
std::vector<std::string> literals(std::string_view line) {
  std::vector<std::string> found;
  bool inside = false;
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (!inside && line.substr(i).starts_with("//")) break;
    if (line[i] == '\\') {
      text += line.substr(i++, 2);
    } else if (line[i] == '"' && !(i > 0 && i + 1 < line.size() && line[i - 1] == '\'' && line[i + 1] == '\'')) {
      if (inside) found.push_back(text);
      inside = !inside;
      text.clear();
    } else {
      text += line[i];
    }
  }
  return found;
}

// Messages of a program, or of its pages, that begin wrongly or have unclear words.
Findings look_at_messages(const std::string& source) {
  Findings found;
  std::istringstream lines(source);
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with("#include")) continue;
    for (const std::string& text : literals(line)) {
      const bool name = text.find(' ') == text.npos;  // as of the operator Where
      if (!name && opens_so(text)) found.openings.push_back(std::to_string(number) + ": " + text);
      if (is_unclear(text)) found.unclear.push_back(std::to_string(number) + ": " + text);
    }
  }
  return found;
}

// The sentences of more than kMostWords words. A sentence ends with a mark and a blank, a word has a letter or a digit.
std::vector<std::string> long_sentences(const std::string& paragraph) {
  static const std::regex link(R"(!?\[([^\]]*)\]\([^)]*\))");
  std::istringstream words(std::regex_replace(paragraph, link, "$1"));
  std::vector<std::string> found;
  std::string sentence;
  size_t count = 0;
  for (std::string word; words >> word;) {
    sentence += (sentence.empty() ? "" : " ") + word;
    count += std::any_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) != 0; }) ? 1 : 0;
    const size_t last = word.find_last_not_of("\"')*");
    if (last == word.npos || std::string_view(".?!").find(word[last]) == std::string_view::npos) continue;
    if (count > kMostWords) found.push_back(sentence);
    sentence.clear();
    count = 0;
  }
  if (count > kMostWords) found.push_back(sentence);
  return found;
}

// `mark`: begins a comment.
Findings look_at(const std::string& text, std::string_view mark = "//") {
  Findings found;
  std::istringstream lines(text);
  bool in_comment = false;
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string_view comment = comment_in(line, mark);
    if (opens_so(comment_begun(line, in_comment, mark))) found.openings.push_back(std::to_string(number) + ": " + line);
    if (is_unclear(comment)) found.unclear.push_back(std::to_string(number) + ": " + line);
    const size_t begin = line.find_first_not_of(' ');
    in_comment = begin != line.npos && std::string_view(line).substr(begin).starts_with(mark);
    const bool wide = !comment.empty() && columns(line) > kMostColumns;
    if (wide) found.long_lines.push_back(std::to_string(number) + ": " + line);
  }
  return found;
}

// All lines of a script have at most kMostColumns columns, not only its comments.
Findings look_at_script(const std::string& text) {
  Findings found = look_at(text, "#");
  found.long_lines.clear();
  std::istringstream lines(text);
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (columns(line) > kMostColumns) found.long_lines.push_back(std::to_string(number) + ": " + line);
  }
  return found;
}

bool is_script(const fs::path& path) {
  if (path.extension() == ".py") return true;
  if (path.has_extension()) return false;
  std::ifstream file(path);
  char first[2] = {};
  return file.read(first, 2) && std::string_view(first, 2) == "#!";
}

// A document's tables and blocks of code may be wider.
Findings look_at_document(const std::string& text) {
  static const std::regex entry(R"(\s*([-*]|\d+\.) .*)");
  Findings found;
  std::istringstream lines(text);
  std::string paragraph;
  size_t begin = 0;
  const auto end_paragraph = [&] {
    for (const std::string& sentence : long_sentences(paragraph)) {
      found.long_sentences.push_back(std::to_string(begin) + ": " + sentence);
    }
    paragraph.clear();
  };
  bool fenced = false;
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with("```")) fenced = !fenced;
    const bool apart = fenced || line.empty() || line.starts_with("```") || line[0] == '|' || line[0] == '#';
    if (apart || std::regex_match(line, entry)) end_paragraph();
    if (!apart && !(paragraph.empty() && line.starts_with("    "))) {
      if (paragraph.empty()) begin = number;
      paragraph += line + ' ';
    }
    if (fenced || line.starts_with("|") || line.starts_with("    ")) continue;
    if (is_unclear(line)) found.unclear.push_back(std::to_string(number) + ": " + line);
    if (columns(line) > kMostColumns) found.long_lines.push_back(std::to_string(number) + ": " + line);
  }
  end_paragraph();
  return found;
}

// Made of the records of operators, sources and results.
bool is_generated(const std::string& document) {
  return document.find("This page is made by") != document.npos ||
         document.find("This page is generated") != document.npos;
}

void check(const std::string& name, const Findings& found) {
  for (const std::string& line : found.openings) CHECK_MESSAGE(false, name, ":", line);
  for (const std::string& line : found.unclear) CHECK_MESSAGE(false, name, ":", line);
  for (const std::string& line : found.long_lines) CHECK_MESSAGE(false, name, ":", line);
  for (const std::string& line : found.long_sentences) {
    CHECK_MESSAGE(false, name, ":", line, ": more than ", kMostWords, " words");
  }
}

}  // namespace

TEST_CASE("comments begin with what they say, have plain words and at most 120 columns") {
  int files = 0;
  for (const std::string top :
       {"base", "dsl", "examples", "executor", "graph", "io", "ops", "passes", "tests", "tools"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      const bool source = is_source(entry.path()) || entry.path().extension() == ".js";
      if (!entry.is_regular_file() || !source || entry.path().filename() == "prose_test.cpp") continue;
      check(fs::relative(entry.path(), root()).string(), look_at(content(entry.path())));
      ++files;
    }
  }
  CHECK(files > 500);
}

TEST_CASE("messages begin with what they say and have plain words") {
  int files = 0;
  for (const std::string top : {"base", "dsl", "examples", "executor", "graph", "io", "ops", "passes", "tools"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      check(fs::relative(entry.path(), root()).string(), look_at_messages(content(entry.path())));
      ++files;
    }
  }
  CHECK(files > 500);
}

TEST_CASE("scripts have at most 120 columns, and comments like those of sources") {
  int files = 0;
  for (const std::string top : {"examples", "tests", "tools"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (!entry.is_regular_file() || !is_script(entry.path())) continue;
      check(fs::relative(entry.path(), root()).string(), look_at_script(content(entry.path())));
      ++files;
    }
  }
  CHECK(files > 40);
}

TEST_CASE("documents have plain words, at most 120 columns, and at most 30 words a sentence") {
  int files = 0;
  for (const fs::path& folder : {root(), root() / "docs", root() / "docs/decisions"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".md") continue;
      const std::string text = content(entry.path());
      if (is_generated(text)) continue;
      Findings found = look_at_document(text);
      if (entry.path().filename() == "CHANGELOG.md") found.long_sentences.clear();  // entries are lists
      check(entry.path().filename().string(), found);
      ++files;
    }
  }
  CHECK(files > 150);
}

TEST_CASE("the list of decisions has each of them") {
  const fs::path folder = root() / "docs" / "decisions";
  const std::string list = content(folder / "README.md");
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "README.md") continue;
    CHECK_MESSAGE(list.find("](" + name + ")") != list.npos, name, " is not in docs/decisions/README.md");
    ++files;
  }
  CHECK(files > 100);
}

TEST_CASE("a comment that begins so is found") {
  CHECK(look_at("// Of a raster.\nint a;\n").openings.size() == 1);
  CHECK(look_at("int a;  // What is left.\n").openings.size() == 1);
  CHECK(look_at("// The tile,\n// Where it begins.\n").openings.empty());
  CHECK(look_at("// Offsets in bytes.\nint b;  // Where\n").openings.size() == 1);
  CHECK(look_at("// " + std::string(118, 'x') + "\n// " + std::string(117, 'x') + "\n").long_lines.size() == 1);
  CHECK(look_at("int a;  // " + std::string(110, 'x') + "\n").long_lines.size() == 1);
  CHECK(look_at_script("a = 1  # Of a run\n# where it is\nb = '" + std::string(115, 'x') + "'\n").openings.size() == 1);
  CHECK(look_at_script("a = 1  # it is told\nb = '" + std::string(116, 'x') + "'\n").unclear.size() == 1);
  CHECK(look_at_script("b = '" + std::string(116, 'x') + "'\n").long_lines.size() == 1);
}

TEST_CASE("unclear words are found in comments, not in code or as parts of words") {
  CHECK(look_at("int a;  // a file beside it\n").unclear.size() == 1);
  CHECK(look_at("// Likewise: the user is told.\n").unclear.size() == 1);
  CHECK(look_at("  // Throws RunError where it is missing.\n").unclear.size() == 1);
  CHECK(look_at("int beside = 0;\n// If `beside` is set; besides, what becomes of it is told_.\n").unclear.empty());
}

TEST_CASE("messages that begin so, or have unclear words, are found; code and comments are none") {
  CHECK(look_at_messages("fail(\"What is left\");\n").openings.size() == 1);
  CHECK(look_at_messages("line(quote('\"'), \"Of a run\");\n").openings.size() == 1);
  CHECK(look_at_messages("  \"reads it beside the file\"\n").unclear.size() == 1);
  CHECK(look_at_messages("fail(\"all \\\"What is\\\"\");  // \"What is\"\n").openings.empty());
  CHECK(look_at_messages("op(\"Where\");\n").openings.empty());
  CHECK(look_at_messages("#include \"What is\"\n").openings.empty());
}

TEST_CASE("long sentences are found in documents, whatever lines they are on") {
  std::string words;
  for (int i = 0; i < 30; ++i) words += i == 15 ? "w\n" : "w ";
  CHECK(look_at_document(words + "w.\n").long_sentences.size() == 1);
  CHECK(look_at_document(words + "\n`w` w.\n").long_sentences.size() == 1);
  CHECK(look_at_document("Short. (" + words + "w.) Short.\n\n" + words + "w\n").long_sentences.size() == 2);
  CHECK(look_at_document("- " + words + "\n- " + words + ". " + words + "− [](a b c d).\n").long_sentences.empty());
  CHECK(look_at_document(words + "\n\n" + words + "\n# w w\n" + words + "\n").long_sentences.empty());
  std::string row = "|";
  for (int i = 0; i < 40; ++i) row += " w";
  CHECK(look_at_document(row + "\n" + row + "\n```\n" + row + "\n```\n").long_sentences.empty());
}

TEST_CASE("unclear words and wide lines are found in documents, not in tables or code") {
  const std::string wide(121, 'x');
  CHECK(look_at_document("Two files beside each other.\n").unclear.size() == 1);
  CHECK(look_at_document(wide + "\n").long_lines.size() == 1);
  CHECK(look_at_document("| " + wide + "\n\n    " + wide + "\n```\n" + wide + "\n```\n").long_lines.empty());
}
}  // namespace prose_test
