// SPDX-License-Identifier: Apache-2.0
#pragma once
// The passes as one table, passes/pipeline.cpp, in the order in which they run.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "passes/loops.h"

namespace arbalest {

struct Passage;

// A pass, in its place.
struct Pass {
  enum class On : uint8_t {
    Graph,       // the whole graph, before the validation loop is cut from it
    Program,     // the program: adds a loop
    Training,    // the training loop's graph
    Validation,  // the validation loop's, if there is one
    Loops,       // each loop's
    Plan,        // the training loop's, once plans have shown what to choose (fit_memory)
  };
  std::string_view name;
  On on;
  bool optional;  // without it the program is right all the same, if slower or larger
  bool (*applies)(const ProgramOptions&);
  void (*run)(const Passage&, Loop&);
  std::string_view reason;  // for its place in the order
};

// Everything that a pass is given besides its loop.
struct Passage {
  Program& program;
  const ProgramOptions& options;
  ProgramNotes& notes;
};

const std::vector<Pass>& passes();

// Runs the pass on what it is for, unless it does not apply or `options` leave it out, and then checks the graphs
// (check_sound()) if options ask for that. Throws GraphError; what a check finds is a std::logic_error that names
// the pass.
void run_pass(const Pass& pass, const Passage& passage);

// The pass of that name, of a program that make_program() has made. Throws std::logic_error if there is none.
void run_pass(std::string_view name, Program& program, const ProgramOptions& options);

}  // namespace arbalest
