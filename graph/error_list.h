#pragma once
// The errors of a graph, collected so that all of them are told at once.

#include <string>
#include <vector>

#include "graph/error.h"

namespace arbalest {

class ErrorList {
 public:
  // Runs `check`. False where it throws a GraphError, which is kept; of several about one place the first.
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
  // twenty, and how many more there are. Does nothing where there are none. attempt() throws it once it has kept a
  // thousand, since a hostile file may have any number of errors.
  void throw_if_any() const;

 private:
  void add(std::string message);

  std::vector<std::string> messages_;
};

}  // namespace arbalest
