// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kinds of data sets that are known: those of the library, of any room, and those that programs add.

#include <string>
#include <vector>

#include "io/sources/source_doc.h"

namespace arbalest {

// Makes a scheme known as register_source() of a scheme alone does, and described.
void register_described(DescribedScheme described);

// All schemes, those of the library first.
std::vector<DescribedScheme> source_schemes();

// The scheme of this name, that the source `text` has. Throws GraphError, with what was probably meant, if none is.
SourceScheme find_scheme(const std::string& text, const std::string& name);

}  // namespace arbalest
