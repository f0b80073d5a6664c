// SPDX-License-Identifier: Apache-2.0
#pragma once
// Errors a user can act on: where, what was found, what was expected, and the nearest valid name.

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace arbalest {

// A place in a graph file; line and column count from 1, line 0 means "no place" (a graph made in C++).
struct Position {
  std::string file;
  int line = 0;
  int column = 0;
};

// The command or the graph is wrong (exit status 2). what() starts with "FILE:LINE:COLUMN: " if there is a place.
class GraphError : public std::runtime_error {
 public:
  GraphError(const Position& where, const std::string& message);
  explicit GraphError(const std::string& message) : std::runtime_error(message) {}
};

// The run failed (exit status 1): a device, a file, memory.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The errors of a graph, collected so that all of them are reported at once.
class ErrorList {
 public:
  // Runs `check`. False if it throws a GraphError, which is kept; of several about one place the first.
  template <typename Check>
  bool attempt(const Check& check) {
    try {
      check();
    } catch (const GraphError& error) {
      add(error.what());
      return false;
    }
    return true;
  }

  // Throws one GraphError with all that were kept, a line each, in the order of their places in the file: at most
  // twenty, and how many more there are. Does nothing if there are none. attempt() throws it once it has kept a
  // thousand, since a hostile file may have any number of errors.
  void throw_if_any() const;

 private:
  void add(std::string message);

  std::vector<std::string> messages_;
};

// `text` as a terminal may show it: control characters, escapes among them, and bytes that are no UTF-8 become "\x1b".
// Lines that end in '\n' stay lines with `keep_lines`.
std::string printable(std::string_view text, bool keep_lines = false);

// The candidate with the least edit distance to `name`, or "" if none is near (more than a third of the letters
// differ).
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// "; did you mean 'X'?" or "".
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace arbalest
