#pragma once
// Classes that a split has nothing of, which are probably not meant. Internal to io.

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

}  // namespace arbalest
