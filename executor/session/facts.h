// SPDX-License-Identifier: Apache-2.0
#pragma once
// Facts by which runs are compared: those of a checkpoint and of the run that goes on, and those of several processes.

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "io/sources/source.h"

namespace arbalest {

// A checksum of 64 bits, in 16 hexadecimal digits. It tells apart what differs by mistake.
std::string sum_of(std::string_view content);

// The version and the sum of the linker's identifications of program and library, and the versions of libraries.
std::string build_text();

// The number of samples and the sum of a few, spread over the split.
std::string samples_text(const Source& source);

// A line for each node: its name, operator, operands and attributes. Long lists are shortened to a checksum.
std::vector<std::string> node_lines(const Graph& graph);

}  // namespace arbalest
