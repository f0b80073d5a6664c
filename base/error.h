// SPDX-License-Identifier: Apache-2.0
#pragma once
// Errors a user can act on: where, what was found, what was expected, and the nearest valid name.

#include <cstdint>
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

  bool operator==(const Position&) const = default;
};

// All errors that the library makes for a user to read: a GraphError, a RunError or an InterruptedError.
class Error : public std::runtime_error {
 public:
  // The kind of error; the number is the exit status of the command.
  enum class Code : uint8_t { Run = 1, Graph = 2, Interrupted = 130 };

  Code code() const { return code_; }               // the kind, and with it the exit status
  const Position& place() const { return place_; }  // the place in a graph file; its line is 0 if none is known

 protected:
  Error(Code code, const std::string& message, const Position& place = {})
      : std::runtime_error(message), code_(code), place_(place) {}

 private:
  Code code_;
  Position place_;
};

// The command or the graph is wrong (exit status 2). what() starts with "FILE:LINE:COLUMN: " if there is a place.
class GraphError : public Error {
 public:
  GraphError(const Position& where, const std::string& message);
  explicit GraphError(const std::string& message) : Error(Code::Graph, message) {}

  // An error about several places, which its message states; place() is the first of them.
  static GraphError about_places(const Position& first, const std::string& message) { return {message, first}; }

 private:
  GraphError(const std::string& message, const Position& where) : Error(Code::Graph, message, where) {}
};

// The run failed (exit status 1): a device, a file, memory.
class RunError : public Error {
 public:
  explicit RunError(const std::string& message) : Error(Code::Run, message) {}
};

// A command was asked to end before it was done (exit status 130).
class InterruptedError : public Error {
 public:
  explicit InterruptedError(const std::string& message) : Error(Code::Interrupted, message) {}
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
      add({error.place(), error.what()});
      return false;
    }
    return true;
  }

  // Throws one GraphError with all that were kept, a line each, in the order of their places in the file: at most
  // twenty, and how many more there are. Does nothing if there are none. attempt() throws it once it has kept a
  // thousand, since a hostile file may have any number of errors.
  void throw_if_any() const;

 private:
  struct Kept {
    Position place;
    std::string message;
  };
  void add(Kept error);

  std::vector<Kept> errors_;
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
