// SPDX-License-Identifier: Apache-2.0

// Functions fit on a screen and take few parameters, and classes have one job.

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace sizes_test {
namespace {

constexpr const char* kRecord = " ";  // stands for the name of a struct or union
constexpr int64_t kMostLines = 80, kMostParameters = 7, kMostMembers = 15;

// The code alone: comments, literals, attributes and lines of the preprocessor become spaces, so that lines keep their
// numbers.
std::string without_text(const std::string& text) {
  std::string code = text;
  const auto blank = [&](size_t from, size_t to) {
    for (size_t i = from; i < std::min(to, code.size()); ++i) code[i] = code[i] == '\n' ? '\n' : ' ';
  };
  const auto after = [&](std::string_view what, size_t from) {
    const size_t at = text.find(what, from);
    return at == text.npos ? text.size() : at + what.size();
  };
  bool line_begins = true;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    const char c = text[i];
    if (text.compare(i, 2, "//") == 0) {
      end = std::min(text.find('\n', i), text.size());
    } else if (text.compare(i, 2, "/*") == 0) {
      end = after("*/", i);
    } else if (text.compare(i, 2, "R\"") == 0) {
      const size_t open = text.find('(', i);
      end = after(")" + text.substr(i + 2, open - i - 2) + "\"", open);
    } else if (c == '"' || (c == '\'' && (i == 0 || std::isalnum(static_cast<unsigned char>(text[i - 1])) == 0))) {
      while (end < text.size() && text[end] != c) end += text[end] == '\\' ? 2 : 1;
      ++end;
    } else if (c == '#' && line_begins) {
      end = std::min(text.find('\n', i), text.size());
      while (end < text.size() && text[end - 1] == '\\') end = std::min(text.find('\n', end + 1), text.size());
    } else {
      line_begins = c == '\n' || (line_begins && c == ' ');
      i = end;
      continue;
    }
    blank(i, end);
    if (c == '"') code[i] = '0';  // an argument that is a text is one
    i = end;
  }
  return code;
}

struct Token {
  std::string text;  // a word, or one mark
  int64_t line = 0;
};

std::vector<Token> tokens_of(const std::string& code) {
  std::vector<Token> tokens;
  int64_t line = 1;
  for (size_t i = 0; i < code.size();) {
    const auto is_word = [&](size_t at) {
      return at < code.size() && (std::isalnum(static_cast<unsigned char>(code[at])) != 0 || code[at] == '_');
    };
    size_t end = i + 1;
    if (is_word(i)) {
      while (is_word(end)) ++end;
    }
    if (code[i] == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(code[i])) == 0) tokens.push_back({code.substr(i, end - i), line});
    i = end;
  }
  return tokens;
}

struct Sizes {
  std::map<std::string, int64_t> lines, parameters, members;  // by the name of a function or class
};

class Counter {
 public:
  explicit Counter(const std::string& text) : tokens_(tokens_of(without_text(text))) {}
  Sizes count() {
    while (at_ < tokens_.size()) scope("");
    return sizes_;
  }

 private:
  // A statement of a scope: its tokens up to its `;` or `{`, and the places in it that brackets do not enclose.
  struct Statement {
    size_t begin = 0, end = 0;
    std::vector<size_t> outer;
    bool has(std::string_view word, const std::vector<Token>& tokens) const {
      return std::any_of(outer.begin(), outer.end(), [&](size_t i) { return tokens[i].text == word; });
    }
  };

  const std::string& text(size_t i) const {
    static const std::string none;
    return i < tokens_.size() ? tokens_[i].text : none;
  }
  bool is_word(size_t i) const {
    return !text(i).empty() && (std::isalnum(static_cast<unsigned char>(text(i)[0])) != 0 || text(i)[0] == '_');
  }

  // The end of the brackets that open at `i`: the place after the closing one.
  size_t closed(size_t i) const {
    const std::string& open = text(i);
    const std::string close = open == "(" ? ")" : open == "{" ? "}" : open == "[" ? "]" : ">";
    int64_t depth = 0;
    for (size_t k = i; k < tokens_.size(); ++k) {
      if (close == ">" && (text(k) == "(" || text(k) == "[" || text(k) == "{")) {
        k = closed(k) - 1;
        continue;
      }
      if (close == ">" && (text(k) == ";" || text(k) == ")")) return i + 1;  // it compares
      if (text(k) == open) ++depth;
      if (text(k) == close && !(close == ">" && text(k - 1) == "-")) --depth;
      if (depth == 0) return k + 1;
    }
    return tokens_.size();
  }

  bool opens_template(size_t i) const { return text(i) == "<" && i > 0 && is_word(i - 1) && text(i - 1) != "operator"; }

  // Reads the declarations of a namespace, a class or a file, up to the `}` that ends it.
  void scope(const std::string& class_name) {
    int64_t members = 0;
    while (at_ < tokens_.size() && text(at_) != "}") members += declaration(class_name);
    ++at_;
    if (!class_name.empty() && class_name != kRecord && members > kMostMembers)
      note(sizes_.members, class_name, members);
  }

  // Reads one declaration, and returns the number of data members that it declares.
  int64_t declaration(const std::string& class_name) {
    Statement here{at_, at_, {}};
    const bool access =
        text(at_ + 1) == ":" && (text(at_) == "public" || text(at_) == "private" || text(at_) == "protected");
    if (access) {
      at_ += 2;
      return 0;
    }
    bool initialised = false;  // from `=` on, braces are values
    while (at_ < tokens_.size()) {
      const std::string& token = text(at_);
      if (token == ";") break;
      if (token == "}") break;
      initialised = initialised || (token == "=" && text(at_ - 1) != "operator");
      if (token == "{" && !initialised && !is_value(here)) break;
      here.outer.push_back(at_);
      at_ = token == "(" || token == "[" || token == "{" || opens_template(at_) ? closed(at_) : at_ + 1;
    }
    here.end = at_;
    if (text(at_) == "}") return 0;
    if (text(at_) == ";") {
      ++at_;
      if (here.outer.empty()) return 0;
      check_parameters(here, class_name);
      return class_name.empty() ? 0 : members_in(here);
    }
    return block(here, class_name);
  }

  // Whether the `{` here is the value of a member, in its declaration or in a constructor's list.
  bool is_value(const Statement& here) const {
    if (here.outer.empty() || has_any(here, {"namespace", "class", "struct", "union", "enum", "extern"})) return false;
    const size_t last = here.outer.back();
    const bool parameters = here.has("(", tokens_);
    if (!parameters) return true;
    return is_word(last) && list_begins(here) && text(last) != "const" && text(last) != "override";
  }
  // Whether the statement has the list of a constructor: a `:` after its parameters.
  bool list_begins(const Statement& here) const {
    bool parameters = false;
    for (const size_t i : here.outer) {
      parameters = parameters || text(i) == "(";
      if (parameters && text(i) == ":" && text(i + 1) != ":" && text(i - 1) != ":") return true;
    }
    return false;
  }
  bool has_any(const Statement& here, const std::vector<std::string_view>& words) const {
    return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return here.has(word, tokens_); });
  }

  int64_t block(const Statement& here, const std::string& class_name) {
    const size_t open = at_;
    const bool function = here.has("(", tokens_) && !has_any(here, {"namespace"});
    if (!function && has_any(here, {"namespace", "extern"})) {
      ++at_;
      scope("");
      return 0;
    }
    if (!function && has_any(here, {"class", "struct", "union"}) && !here.has("enum", tokens_)) {
      std::string name = "?";  // the last word before bases
      for (const size_t i : here.outer) {
        if (text(i) == ":") break;
        if (is_word(i) && text(i) != "final") name = text(i);
      }
      ++at_;
      // Records of values are as long as what they record: only what hides its members is held to their number.
      const std::string outer = class_name.empty() || class_name == kRecord ? "" : class_name + "::";
      scope(here.has("class", tokens_) ? outer + name : kRecord);
      int64_t members = 0;  // of `struct {...} x;`
      for (bool names = true; at_ < tokens_.size() && text(at_) != ";"; ++at_) {
        if (names && is_word(at_)) ++members;
        names = text(at_) == ",";
      }
      ++at_;
      return class_name.empty() ? 0 : members;
    }
    at_ = closed(open);
    if (function) {
      check_parameters(here, class_name);
      const int64_t lines = tokens_[at_ - 1].line - tokens_[here.begin].line + 1;
      if (lines > kMostLines && !is_kernel(here)) note(sizes_.lines, name_of(here, class_name), lines);
    } else if (text(at_) == ";") {
      ++at_;
    }
    return 0;
  }

  bool is_kernel(const Statement& here) const { return has_any(here, {"__global__", "__device__"}); }

  // The `(` before parameters; `here.end` if there is none.
  size_t parameters_of(const Statement& here) const {
    static const std::vector<std::string_view> kOthers = {"__launch_bounds__", "alignas",       "decltype", "explicit",
                                                          "noexcept",          "__attribute__", "requires"};
    for (const size_t i : here.outer) {
      if (text(i) == "=") break;
      if (text(i) != "(" || i == here.begin) continue;
      if (std::find(kOthers.begin(), kOthers.end(), text(i - 1)) == kOthers.end()) return i;
    }
    return here.end;
  }

  std::string name_of(const Statement& here, const std::string& class_name) const {
    const size_t open = parameters_of(here);
    std::string name = text(open - 1);
    for (size_t i = open - 1; i > here.begin + 1 && text(i - 1) == ":" && text(i - 2) == ":"; i -= 3) {
      if (i < 3 || !is_word(i - 3)) break;
      name = text(i - 3) + "::" + name;
    }
    return class_name.empty() || class_name == kRecord ? name : class_name + "::" + name;
  }

  void check_parameters(const Statement& here, const std::string& class_name) {
    const size_t open = parameters_of(here);
    if (open == here.end || is_kernel(here) || here.has("using", tokens_) || here.has("typedef", tokens_)) return;
    if (!is_word(open - 1) || here.begin + 1 == open) {
      if (class_name.empty()) return;  // a macro by itself
    }
    const size_t close = closed(open) - 1;
    int64_t count = close > open + 1 ? 1 : 0;
    for (size_t i = open + 1; i < close;) {
      if (text(i) == ",") ++count;
      i = text(i) == "(" || text(i) == "[" || text(i) == "{" || opens_template(i) ? closed(i) : i + 1;
    }
    if (count > kMostParameters) note(sizes_.parameters, name_of(here, class_name), count);
  }

  int64_t members_in(const Statement& here) const {
    if (has_any(here, {"using", "typedef", "friend", "static", "operator", "class", "struct", "enum", "union"}))
      return 0;
    int64_t count = 1;
    for (const size_t i : here.outer) {
      if (text(i) == "=") break;
      if (text(i) == "(") return 0;  // a function
    }
    for (const size_t i : here.outer) count += text(i) == "," ? 1 : 0;
    return count;
  }

  static void note(std::map<std::string, int64_t>& sizes, const std::string& name, int64_t size) {
    sizes[name] = std::max(sizes[name], size);
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  Sizes sizes_;
};

Sizes sizes_of(const std::string& text) {
  return Counter(text).count();
}

}  // namespace

TEST_CASE("functions have at most 80 lines and 7 parameters, classes 15 members") {
  for (const std::string top : {"base", "dsl", "examples", "executor", "graph", "io", "ops", "passes", "tools"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string file = fs::relative(entry.path(), root()).string();
      const Sizes sizes = sizes_of(content(entry.path()));
      for (const auto& [name, size] : sizes.lines) FAIL_CHECK(file, ": ", name, " has ", size, " lines");
      for (const auto& [name, size] : sizes.parameters) FAIL_CHECK(file, ": ", name, " has ", size, " parameters");
      for (const auto& [name, size] : sizes.members) FAIL_CHECK(file, ": ", name, " has ", size, " members");
    }
  }
}

TEST_CASE("sizes are counted as the compiler would") {
  const std::string body(200, '\n');
  CHECK(sizes_of("void f() {" + body + "}").lines.at("f") == 201);
  CHECK(sizes_of("__global__ void f() {" + body + "}").lines.empty());
  CHECK(sizes_of("namespace a {\nint A::f(int b) const {" + body + "}\n}").lines.at("A::f") == 201);
  CHECK(sizes_of("std::function<void(int)> f(std::map<int, int> a, int b) {" + body + "}").lines.at("f") == 201);
  CHECK(sizes_of("A::A(int a) : a_{a}, b_(a) {" + body + "}").lines.at("A::A") == 201);
  CHECK(sizes_of("const int kTable[] = {" + body + "};").lines.empty());
  CHECK(sizes_of("// void f() {" + body + "\"void g() {" + body + "\";").lines.empty());

  CHECK(sizes_of("void f(int, int, int, int, int, int, int, int);").parameters.at("f") == 8);
  CHECK(sizes_of("void f(A<int, int> a, int b = g(1, 2, 3), int c, int d, int e, int f, int g) {}").parameters.empty());
  CHECK(sizes_of("__global__ void f(int, int, int, int, int, int, int, int) {}").parameters.empty());
  CHECK(sizes_of("class A { A(int, int, int, int, int, int, int, int) : a(0) {} int a; };").parameters.at("A::A") == 8);

  std::string members;
  for (int i = 0; i < 8; ++i)
    members += "std::map<int, int> a" + std::to_string(i) + ", b" + std::to_string(i) + "{};\n";
  CHECK(sizes_of("class A : public B {\n public:\n int f() { return 1; }\n private:\n" + members + "};")
            .members.at("A") == 16);
  CHECK(sizes_of("struct A {\n" + members + "};").members.empty());
  CHECK(sizes_of("class A {\n" + members.substr(0, members.rfind("std")) + "struct { int e; } a; };").members.empty());
  CHECK(sizes_of("class A {\n" + members + "struct B { int e; } a = {1}, b{}; };").members.at("A") == 18);
  CHECK(
      sizes_of("class A {\n std::function<int(int)> f;\n int g(int, int) const;\n static int h;\n};").members.empty());
}

}  // namespace sizes_test
