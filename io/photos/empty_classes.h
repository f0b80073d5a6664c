// SPDX-License-Identifier: Apache-2.0
#pragma once
// Classes that are probably not meant: those that a split has nothing of, and a single one. Internal to io.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/sources/source.h"

namespace arbalest {

// A warning that lists them. `names`: of the classes; empty: they are numbers. `label`: the class of a sample.
void warn_of_empty_classes(const SourceSpec& spec, int64_t classes, const std::vector<std::string>& names,
                           size_t samples, const std::function<int64_t(size_t)>& label);

// A warning if there is one class alone, which leaves a classifier nothing to learn. `expected`: what is usually
// there, and a remedy: "a folder for each class in 'photos'; …".
void warn_of_one_class(const SourceSpec& spec, const std::vector<Field>& fields, const std::vector<std::string>& names,
                       const std::string& expected);

}  // namespace arbalest
