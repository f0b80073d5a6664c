// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files that a source found and does not read. Internal to io, except for the text.

#include <string>
#include <string_view>

#include "io/sources/source.h"

namespace arbalest {

// Counts a file by the ending of its name, in small letters; as one without if it has none of letters and digits.
void pass_over(PassedOver& files, std::string_view name);

int64_t count(const PassedOver& files);

// "12 files were passed over: 8 .heic, 4 .txt"; those that there are most of first.
std::string to_string(const PassedOver& files);

// A warning that says so; none if there are none. `label`: of the source, as SourceSpec::label() has it.
void warn_of_passed_over(const std::string& label, const PassedOver& files);

}  // namespace arbalest
