// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values that all ranks take the same decision by. Each rank gives its own and gets the same result from all of them.
// Every rank calls these at the same point. `ranks` is nullptr for a process that is alone: its own value is the
// result.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "executor/world/ranks.h"

namespace arbalest {

// The texts that a long value is made of, such as the nodes of a graph.
struct Texts {
  size_t size = 0;
  std::function<std::string(size_t)> at;
};
// A value that has to be the same on all ranks. A fact with texts has their sum as its value.
struct Fact {
  std::string name, value;
  Texts texts = {};
};
Fact long_fact(std::string name, Texts texts);
// Throws GraphError, on all ranks alike, if facts are not the same everywhere: it names the first rank that differs,
// and both values; of a long fact the first lines that differ.
void check_alike(Ranks& ranks, const std::vector<Fact>& facts);
int64_t largest_of(Ranks* ranks, int64_t number);
std::string first_of(Ranks* ranks, std::string text);  // of the first rank whose text is not empty; "": all are
// An error that all ranks throw, so that all can go on from there in another way.
class AgreedError : public RunError {
 public:
  using RunError::RunError;
};
// Runs `step`, which does not speak with other ranks. If it throws RunError on any rank, all throw AgreedError with the
// name and message of the first of these. A process that is alone throws what `step` does.
void on_all(Ranks* ranks, const std::function<void()>& step);

}  // namespace arbalest
