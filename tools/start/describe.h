// SPDX-License-Identifier: Apache-2.0
#pragma once
// Descriptions of operators and sources, as the command prints them.

#include <string>

namespace arbalest {

// As `arbalest ops` prints it: an operator with its attributes, also under another framework's name, or those whose
// name or description has the word in it; "": all of them. Throws GraphError if there is none.
std::string describe_operators(const std::string& name);

// As `arbalest sources` prints it: a scheme ("csv", "csv:" or a whole source) with its options; "": all of them. Throws
// GraphError if there is none.
std::string describe_sources(const std::string& name);

}  // namespace arbalest
