// SPDX-License-Identifier: Apache-2.0

// Malformed graph files: each fault is refused at its place, in words, and nothing that a file holds crashes the
// reader.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "base/plain_message.h"
#include "graph/file/graph_file.h"
#include "tests/graph/file_fixture.h"

using namespace arbalest;

namespace file_errors_test {
namespace {

Graph read(std::string_view text) {
  return read_graph_text(text, "f", file_test_ops());
}

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

struct Malformed {
  const char* text;
  const char* place;                 // "f:LINE:COLUMN: "
  std::vector<const char*> phrases;  // all in the message
};

const Malformed kMalformed[] = {
    // Lexical
    {"g (float[2] x) => (y) { y = Relu <a = \"open> (x) }", "f:1:39: ", {"does not end", "'\"'"}},
    {"g () => () { y = Relu <a = \"\\q\"> () }", "f:1:28: ", {"unknown escape", "\\q"}},
    {"g () => () { y = Relu <a = \"\\x4\"> () }", "f:1:28: ", {"two hexadecimal digits"}},
    {"g () => () { y = Relu <a = 1.2.3> () }", "f:1:28: ", {"'1.2.3' is not a number"}},
    {"g () => () { y = Relu <a = 3x> () }", "f:1:28: ", {"'3x' is not a number"}},
    {"g () => () { y = Relu <a = 1e> () }", "f:1:28: ", {"'1e' is not a number"}},
    {"g () => () { y = Relu <a = -> () }", "f:1:28: ", {"is not a number"}},
    {"g () => () { y = Relu <a = 99999999999999999999> () }", "f:1:28: ", {"does not fit in 64 bits"}},
    {"g () => () { y = Relu <a = 1e999> () }", "f:1:28: ", {"does not fit in 64 bits"}},
    {"g () => () { y ; }", "f:1:16: ", {"unexpected character ';'"}},
    {"g () => ()\n{\n  \xc3\xa4 = Relu () }", "f:3:3: ", {"unexpected character '\\xc3'"}},
    {"# \xc3\xa4\xc3\xb6 counts as two\n# x\ng () => () { \"\xc3\xa4\" = Relu (q) }",
     "f:3:26: ",
     {"'q' is not defined"}},
    // Structure
    {"", "f:1:1: ", {"found the end of the file", "the graph's name"}},
    {"g", "f:1:2: ", {"found the end of the file", "expected '('"}},
    {"<ir_version: 8", "f:1:15: ", {"the end of the file", "',' or '>'"}},
    {"<ir_versoin: 8> g () => () {}", "f:1:2: ", {"'ir_versoin'", "did you mean 'ir_version'?"}},
    {"<ir_version: \"8\"> g () => () {}", "f:1:14: ", {"found string \"8\"", "a whole number"}},
    {"<opset_import: [\"\" : 6]> g () => () {}", "f:1:2: ", {"opset 6", "expected 7 to 28"}},
    {"<opset_import: [\"\" : 99]> g () => () {}", "f:1:2: ", {"opset 99", "expected 7 to 28"}},
    {"<opset_import: [\"arbalest\" : 2]> g () => () {}", "f:1:2: ", {"\"arbalest\" : 2", "version 1"}},
    {"g () = () {}", "f:1:6: ", {"found '='", "expected '=>'"}},
    {"g () => () { y = Relu (x", "f:1:25: ", {"the end of the file", "',' or ')'"}},
    {"g () => () {", "f:1:13: ", {"the end of the file", "a node or '}'"}},
    {"g () => () {} x y", "f:1:17: ", {"found 'y'", "expected '('"}},
    {"g () => () {} 3", "f:1:15: ", {"found number 3", "a function or the end of the file"}},
    {"g () => () { = Relu () }", "f:1:16: ", {"'Relu'", "at least one output"}},
    {"g () => () { y = 3 () }", "f:1:18: ", {"found number 3", "an operator"}},
    {"g () => () { y = Relu <a> () }", "f:1:25: ", {"found '>'", "expected '='"}},
    {"g () => () { y = Relu <a = [1, \"x\"]> () }", "f:1:32: ", {"found string \"x\"", "a number"}},
    {"g () => () { y = Relu <a = [[1]]> () }", "f:1:29: ", {"found '['", "a number or text in quotes"}},
    {"g () => () { y = Relu <a = text> () }", "f:1:28: ", {"found 'text'", "text in quotes"}},
    {"g () => () { y = Relu <a: flaot = 1> () }", "f:1:27: ", {"'flaot'", "did you mean 'float'?"}},
    {"g () => () { y = Relu <a: int = 1.5> () }", "f:1:33: ", {"'a' is 1.5, expected int"}},
    {"g () => () { y = Relu <a = 1, a = 2> () }", "f:1:31: ", {"'a' is stated twice"}},
    // Types and data
    {"g (flaot[2] x) => () {}", "f:1:4: ", {"'flaot'", "did you mean 'float'?"}},
    {"g (float16[2] x) => () {}", "f:1:4: ", {"unsupported type 'float16'", "bfloat16"}},
    {"g (float[-2] x) => () {}", "f:1:10: ", {"number -2", "0 or more"}},
    {"g (float[1000000000, 1000000000, 1000000000] x) => () {}", "f:1:4: ", {"too large"}},
    {"g (x) => () {}", "f:1:4: ", {"input 'x' needs a type"}},
    {"g (float[] x) => () {}", "f:1:12: ", {"input 'x' needs a type and a shape"}},
    {"g () => () <float[1000000000] w = {1}> {}", "f:1:37: ", {"more numbers", "1000000000 elements, 1 given"}},
    {"g () => () <float[2] w = {1, 2, 3}> {}", "f:1:33: ", {"found number 3", "'w' has 2 elements"}},
    {"g () => () <float[N] w = {1}> {}", "f:1:13: ", {"needs a shape of numbers"}},
    {"g () => () <uint8[1] w = {256}> {}", "f:1:27: ", {"number 256", "does not fit in 8 bits"}},
    {"g () => () <int32[1] w = {1.5}> {}", "f:1:27: ", {"number 1.5", "a whole number"}},
    {"g () => () <float[1] w = {1e39}> {}", "f:1:27: ", {"does not fit in 32 bits"}},
    {"g () => () <w = {1}> {}", "f:1:13: ", {"'w' needs a type"}},
    {"g () => () <float[2] missing> {}", "f:1:22: ", {"'missing' is not defined"}},
    // Names
    {"g (float[2] image) => () { y = Relu (imaeg) }", "f:1:38: ", {"'imaeg'", "did you mean 'image'?"}},
    {"g (float[2] x) => () { y = Relu (z) z = Relu (x) }", "f:1:34: ", {"'z' is not defined before"}},
    {"g (float[2] x) => () <float[2] t> { y = Add (x, t) }", "f:1:32: ", {"'t' is not defined", "arbalest.Embedding"}},
    {"g (float[2] x) => () { y = Relu (y) }", "f:1:34: ", {"'y' is not defined before"}},
    {"g (float[2] x) => () {\n x = Relu (x) }", "f:2:2: ", {"'x' is defined twice", "line 1"}},
    {"g (float[2] x, float[2] x) => () {}", "f:1:25: ", {"'x' is defined twice"}},
    {"g (float[2] x) => (float[2] yy) { y = Relu (x) }", "f:1:29: ", {"'yy' is not defined"}},
    {"g (float[2] x) => (float[3] x) {}", "f:1:29: ", {"'x' is float[2], declared as float[3]"}},
    {"g (float[2] x) => () { [n] y = Relu (x) [n] z = Relu (x) }", "f:1:42: ", {"another node is named 'n'"}},
    {"g (float[2] x) => () { y = Rellu (x) }", "f:1:28: ", {"node 'y'", "'Rellu'", "did you mean 'Relu'?"}},
    {"g (float[2] x) => () { y = Train (x) }", "f:1:28: ", {"'Train'", "did you mean 'arbalest.Train'?"}},
    {"g (float[2] x) => () { y = arbalest.ReluGrad (x) }", "f:1:28: ", {"internal operator 'arbalest.ReluGrad'"}},
    {"<opset_import: [\"\" : 17]> g () => () { y, z = arbalest.Prefetch () }",
     "f:1:47: ",
     {"\"arbalest\"", "opset_import"}},
    {"g (float[2] x) => () { y = Relu <a = @b> (x) }", "f:1:34: ", {"'@b'", "outside of any function"}},
    {"g () => () { y = Relu <a = float[1] {1}> () }", "f:1:24: ", {"is a tensor"}},
    {"g () => () { y = Constant <value_flot = 1> () }", "f:1:28: ", {"did you mean 'value_float'?"}},
    {"g () => () { y = Constant <value = 1> () }", "f:1:28: ", {"expected a tensor"}},
    {"g () => () { y = Constant <value_int = \"a\"> () }", "f:1:28: ", {"expected ints"}},
    {"g () => () { y = Constant () }", "f:1:18: ", {"one attribute"}},
    // Functions
    {"g (float[2] x) => () { y = f (x) } f (a) => (b) { b = Relu (c) }", "f:1:61: ", {"'c' is not defined"}},
    {"g (float[2] x) => () { y = ff (x) } fff (a) => (b) { b = Relu (a) }", "f:1:28: ", {"did you mean 'fff'?"}},
    {"g (float[2] x) => () { y = f <filtres = 1> (x) } f <filters> (a) => (b) { b = Relu (a) }",
     "f:1:31: ",
     {"'f' has no attribute 'filtres'", "did you mean 'filters'?"}},
    {"g (float[2] x) => () { y = f (x) } f <filters> (a) => (b) { b = Relu (a) }",
     "f:1:28: ",
     {"'f' needs attribute 'filters'"}},
    {"g (float[2] x) => () { y = f <k = \"s\"> (x) } f <k = 1.5> (a) => (b) { b = Relu (a) }",
     "f:1:31: ",
     {"\"s\"", "expected float"}},
    {"g (float[2] x) => () { y = f (x) } f <k = 1> (a) => (b) { b = Relu <z = @kk> (a) }",
     "f:1:69: ",
     {"no attribute 'kk'", "did you mean 'k'?"}},
    {"g (float[2] x) => () { y = f <k = 1.5> (x) } f <k> (a) => (b) { b = Relu <z: int = @k> (a) }",
     "f:1:75: ",
     {"'z' is 1.5, expected int"}},
    {"g (float[2] x) => () { y = f (x, x) } f (a) => (b) { b = Relu (a) }", "f:1:28: ", {"2 inputs", "at most 1"}},
    {"g (float[2] x) => () { y, z = f (x) } f (a) => (b) { b = Relu (a) }", "f:1:31: ", {"2 outputs", "at most 1"}},
    {"g (float[2] x) => () { y = f (x) } f (a) => (b) { c = Relu (a) }", "f:1:46: ", {"value 'b' is not defined"}},
    {"g (float[2] x) => () { y = f (x) } f (a) => (a) { }", "f:1:46: ", {"returns its input 'a'", "Identity"}},
    {"g (float[2] x) => () { y = f (x) } f (a) => (b) { b = Relu (a) } f (a) => (b) { }",
     "f:1:66: ",
     {"'f' is defined twice"}},
    {"g (float[2] x) => () { y = f (x) } f (a, a) => (b) { }",
     "f:1:42: ",
     {"input of function 'f' 'a' is stated twice"}},
    {"g (float[2] x) => () { y = f (x) } f (a) => (b) { b = f (a) }", "f:1:55: ", {"'f' calls itself: f → f"}},
    {"g (float[2] x) => () { y = f (x) } f (a) => (b) { b = h (a) } h (a) => (b) { b = f (a) }",
     "f:1:82: ",
     {"calls itself: f → h → f"}},
    {"g (float[2] x) => () { y = f (x) } f <k = @m> (a) => (b) { b = f (a) }", "f:1:43: ", {"a default"}},
    {"g (float[2] x) => () { \"y/c\" = Relu (x) y = f (x) } f (a) => (b) { c = Relu (a) b = Relu (c) }",
     "f:1:68: ",
     {"'y/c' is defined twice"}},
};

}  // namespace

TEST_CASE("graph file: malformed files are refused at their place and in words") {
  for (const Malformed& malformed : kMalformed) {
    CAPTURE(malformed.text);
    const std::string message = error_of([&] { read(malformed.text); });
    CAPTURE(message);
    CHECK(message.find(malformed.place) == 0);
    for (const char* phrase : malformed.phrases) CHECK(message.find(phrase) != std::string::npos);
  }
}

TEST_CASE("graph file: faults that verify finds carry the place of the attribute or the node") {
  const auto verified = [](const char* text) {
    return error_of([&] {
      Graph graph = read(text);
      verify(graph);
    });
  };
  const std::string attribute = verified("g (float[2] x, float[2] w) => () {\n y = Conv <stride = [1, 1]> (x, w) }");
  CHECK(attribute.find("f:2:12: ") == 0);
  CHECK(attribute.find("did you mean 'strides'?") != std::string::npos);
  CHECK(verified("g (float[2] x) => () { y = Add (x) }").find("f:1:28: node 'y' (Add)") == 0);
  CHECK(verified("g (float[2] x) => () { y = Add (x, ) }").find("left out") != std::string::npos);
}

TEST_CASE("graph file: hostile files end in an error, soon") {
  const auto refused = [](const std::string& text) { return error_of([&] { read(text); }); };
  CHECK(refused("g () => () { y = Relu <a = " + std::string(1'000'000, '[')).find("found '['") != std::string::npos);
  CHECK(refused("g () => () { y = Relu <a = " + std::string(1'000'000, '9') + "> () }").find("64 bits") !=
        std::string::npos);
  CHECK(refused(std::string(1'000'000, 'n') + " () => () {}").find("longer than") != std::string::npos);
  CHECK(refused(std::string("g () => () { \0 }", 16)).find("'\\x00'") != std::string::npos);
  CHECK(refused("g () => () { y = " + std::string(100'000, '(')) != "");

  // Functions that double at each of 40 levels stand for 2^40 nodes; 100 levels that do not, for a deep nesting.
  std::string doubling = "g (float[1] x) => () { y = f40 (x) }\nf0 (a) => (b) { b = Relu (a) }\n", deep = doubling;
  for (int i = 1; i <= 40; ++i) {
    doubling += fmt::format("f{} (a) => (b) {{ c = f{} (a) b = f{} (c) }}\n", i, i - 1, i - 1);
  }
  CHECK(refused(doubling).find("more than 262144") != std::string::npos);
  deep.replace(deep.find("f40"), 3, "f100");
  for (int i = 1; i <= 100; ++i) deep += fmt::format("f{} (a) => (b) {{ b = f{} (a) }}\n", i, i - 1);
  CHECK(refused(deep).find("more than 64 deep") != std::string::npos);
}

TEST_CASE("graph file: damaged files are refused or read, never worse; what is read can be written") {
  const std::string originals[] = {
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1, \"b\" : 1]>\nnet (float[N, 3] x) => (float[N, 3] y, "
      "t)\n"
      "<float[2, 2] w = {1, 2.5, -3e-2, inf}, int64[2] s = {1, -2}>\n{\n  i, l = arbalest.Prefetch <source = "
      "\"a\\n\\x41\", "
      "tags = [\"a\", \"b\"]> ()\n  k = Constant <value = float[2] {1, 2}> ()\n  c = Conv <strides = [2, 1], group = "
      "3> (x, w, )"
      "\n  [lab] e = Clip (c, , w)\n  , f = Split (e)\n  y = b.f <n = 3, r = [1, 2.5]> (f)\n  t = arbalest.Train <lr: "
      "float = "
      "1> (y)\n}\n<domain: \"b\">\nf <n, r = [1.5], s: string = \"q\"> (a, u) => (o)\n{ # inner\n  \"q r\" = Clip (a, "
      "u)\n  o = "
      "arbalest.Conv <filters: int = @n> (\"q r\")\n}\n",
      "g (float[2] x) => (float[2] y) { h = a (x) y = a (h) } a <k: ints = []> (p) => (q) { m = c (p) q = c (m) } "
      "c (p) => (q) { q = Conv <strides = [1, 1]> (p, p) }"};
  const std::string_view tokens[] = {"<",    ">",   "(",
                                     ")",    "{",   "}",
                                     "[",    "]",   ",",
                                     "=",    "=>",  ":",
                                     "@",    "\"",  "\\",
                                     "#",    "\n",  "float",
                                     "x",    "y",   "a",
                                     "-1",   "1e9", "999999999999",
                                     ".",    "?",   std::string_view("\0", 1),
                                     "\xff", "inf", "-",
                                     "0.5",  " "};
  std::mt19937 random(11);
  const auto below = [&](size_t n) { return size_t(random() % n); };
  int accepted = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = originals[below(2)];
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = below(text.size()), length = std::min(below(12), text.size() - at);
      switch (below(4)) {
        case 0: text.erase(at, length); break;
        case 1: text.insert(at, tokens[below(std::size(tokens))]); break;
        case 2: text.insert(below(text.size()), text.substr(at, length)); break;
        default: text.replace(at, 1, tokens[below(std::size(tokens))]); break;
      }
      if (text.empty()) text.push_back(' ');
    }
    Graph graph;
    if (!error_of([&] { graph = read(text); }).empty()) {
      ++refused;
      continue;
    }
    ++accepted;
    CAPTURE(text);
    REQUIRE(difference(graph, read(write_graph_text(graph))) == "");
    error_of([&] { verify(graph); });
  }
  CHECK(refused > 10'000);
  CHECK(accepted > 500);
}

TEST_CASE("a bracket or a quote that is not closed is named with its line") {
  const auto told = [](const std::string& text) { return message_of([&] { read(text); }); };
  const std::string head = "g (float[2] x) => (y)\n";
  const auto contains = [](const std::string& message, std::string_view part) {
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
  };
  contains(told(head + "{\n  y = Relu (x)\n"),
           "the end of the file, expected a node or '}'; the '{' on line 2 is not closed");
  contains(told(head + "{\n  z = Relu (x\n  y = Relu (z)\n}\n"), "found 'y', expected ',' or ')'; the '(' on line 3");
  contains(told(head + "{\n  y = Relu <a = [1, 2> (x)\n}\n"), "found '>', expected ',' or ']'; the '[' on line 3");
  contains(told(head + "{\n  y = Relu <a = 1 (x)\n}\n"), "found '(', expected ',' or '>'");
  contains(told(head + "{\n  y = Relu (x)\n<domain: \"d\"> f (a) => (b) { b = Relu (a) }\n"),
           "the '{' on line 2 is not closed");
  contains(told(head + "{\n  z = Relu <a = \"q> (x)\n  y = Relu <a = \"r\"> (z)\n}\n"),
           "a string that begins on line 3 goes on over the end of its line: is a quote missing there?");
  // Errors of another kind say nothing of brackets.
  CHECK(told(head + "{\n  y = 3 (x)\n}\n").find("not closed") == std::string::npos);
}

TEST_CASE("all errors of a graph are reported, in the order of the file, and none that follows from another") {
  const auto told = [](const std::string& text) { return message_of([&] { read(text); }); };
  const std::string message = told(
      "g (float[2] x) => (y)\n{\n"
      "  a = Rellu (x)\n"
      "  b = Relu (a)\n"  // follows
      "  c = Relu (nowhere)\n"
      "  d = Loop (b)\n"  // wrong in itself too
      "  y = Relu (d)\n}\n");
  CAPTURE(message);
  std::vector<std::string> lines;
  std::istringstream text(message);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].find("f:3:7: node 'a': unknown operator or function 'Rellu'") == 0);
  CHECK(lines[1].find("f:5:13: input 'nowhere' is not defined") == 0);
  CHECK(lines[2].find("f:6:7: node 'd': the ONNX operator 'Loop' is not supported") == 0);
}

TEST_CASE("of very many errors twenty are reported, and how many more there are") {
  const auto told_of = [](int errors) {
    std::string text = "g (float[2] x) => ()\n{\n";
    for (int i = 0; i < errors; ++i) text += "  v" + std::to_string(i) + " = Nothing (x)\n";
    const std::string message = message_of([&] { read(text + "}\n"); });
    CHECK(std::count(message.begin(), message.end(), '\n') == 20);
    return message;
  };
  CHECK(told_of(50).ends_with("\nand 30 more errors"));
  // A hostile file: the rest is not looked at.
  CHECK(told_of(100'000).ends_with("\nand at least 980 more errors"));
}

TEST_CASE("messages that quote a file stay short") {
  const std::string name(1000, 'n');
  std::string list = "[\"" + name + "\"";
  for (int i = 0; i < 100; ++i) list += ", \"" + name + "\"";
  const std::string message = message_of([&] { read("g () => () { y = Constant <value_int = " + list + "]> () }"); });
  CHECK(message.size() < 1000);
  CHECK(message.find("expected") == std::string::npos);  // cut, and it says so
  CHECK(message.ends_with("…"));
}

TEST_CASE("a node takes a bounded number of attributes") {
  std::string text = "g (float[2] x) => (y) { y = Relu <";
  for (int i = 0; i < 1001; ++i) text += (i > 0 ? ", k" : "k") + std::to_string(i) + " = 1";
  CHECK(message_of([&] { read(text + "> (x) }"); }).find("'Relu' has 1001 attributes, expected at most 1000") !=
        std::string::npos);
}

TEST_CASE("attributes that functions hand on to each other are bounded in sum") {
  // 2^17 calls of f0, each with the list: 100 kB of text stand for 25 GB.
  std::string text = "<opset_import: [\"\" : 17, \"f\" : 1]>\ng (float[2] x) => (y) { y = f.f17 <v = [1.0";
  for (int i = 1; i < 25'000; ++i) text += ",1.0";
  text +=
      "]> (x) }\n<domain: \"f\", opset_import: [\"\" : 17]>\nf0 <v> (x) => (y) { "
      "c = Constant <value_floats = @v> () y = Relu (x) }\n";
  for (int i = 1; i <= 17; ++i) {
    const std::string below = "f.f" + std::to_string(i - 1) + " <v = @v>";
    text += "<domain: \"f\", opset_import: [\"\" : 17, \"f\" : 1]>\nf" + std::to_string(i) +
            " <v> (x) => (y) { t = " + below + " (x) y = " + below + " (t) }\n";
  }
  CHECK(message_of([&] { read(text); }).find("attributes take more than 256 MiB") != std::string::npos);
}

TEST_CASE("names of attributes that functions hand on to each other are bounded in sum") {
  // 2^15 calls of f0: their attribute's name of 10 kB, or its node's, stands for 320 MB.
  const auto refused = [](const std::string& handed, const std::string& own) {
    const std::string domain = "<domain: \"f\", opset_import: [\"\" : 17, \"f\" : 1]>\n";
    std::string text = "<opset_import: [\"\" : 17, \"f\" : 1]>\ng (float[2] x) => (y) { y = f.f15 <" + handed +
                       " = 1> (x) }\n" + domain + "f0 <" + handed + "> (x) => (y) { y = Relu <" + own + " = 1> (x) }\n";
    for (int i = 1; i <= 15; ++i) {
      const std::string below = "f.f" + std::to_string(i - 1) + " <" + handed + " = @" + handed + ">";
      text += domain + "f" + std::to_string(i) + " <" + handed + "> (x) => (y) { t = " + below + " (x) y = " + below +
              " (t) }\n";
    }
    return message_of([&] { read(text); }).find("attributes take more than 256 MiB") != std::string::npos;
  };
  CHECK(refused(std::string(10'000, 'n'), "k"));
  CHECK(refused("v", std::string(10'000, 'n')));
  CHECK_FALSE(refused("v", "k"));
}

TEST_CASE("an error's lines are cut where names in it are long") {
  const std::string message = plain_message(RunError("first\n" + std::string(5000, 'x') + "\nlast"));
  CHECK(message.starts_with("first\nxxx"));
  CHECK(message.ends_with("x …\nlast"));
  CHECK(message.size() < 1100);
}

TEST_CASE("an error has a code, which is the exit status, and a place in the file") {
  const auto error_of = [](std::string_view text) -> Error {
    try {
      read(text);
    } catch (const Error& error) {
      return error;
    }
    return RunError("there was no error");
  };
  const Error one = error_of("g () => () {\n  y = Relu <a = 3x> () }");
  CHECK(one.code() == Error::Code::Graph);
  CHECK(int(one.code()) == 2);
  CHECK(one.place() == Position{"f", 2, 17});
  const Error several = error_of("g () => () {\n  y = Relu (q)\n  z = Relu (r) }");
  CHECK(several.place() == Position{"f", 2, 13});
  CHECK(std::string(several.what()).find("f:3:13: ") != std::string::npos);
  const RunError run("the disk is full");
  CHECK(int(run.code()) == 1);
  CHECK(run.place() == Position{});
}

}  // namespace file_errors_test
