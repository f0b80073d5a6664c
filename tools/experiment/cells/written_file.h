// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bench file that is written for somebody, to run it or to go on from there.

#include <string>
#include <vector>

#include "tools/experiment/cells/bench_file.h"

namespace arbalest {

struct WrittenSetting {
  std::string name;
  std::vector<std::string> values;  // of which several are a list
};

struct WrittenBench {
  std::string graph;  // as seen from the working directory
  std::vector<WrittenSetting> settings;
  ThroughputRule rule;
};

// The text of a file at `path`, from whose folder the graph is named. Its cells are compared with the first value of
// the first list.
std::string text_of(const WrittenBench& bench, const std::string& path);

}  // namespace arbalest
