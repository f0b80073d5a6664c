// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fields of tables that other programs read.

#include <string>
#include <string_view>

namespace arbalest {

// `text` as RFC 4180 has it for one field of a line of CSV: in quotes if it holds a comma, a quote or the end of a
// line.
std::string csv_field(std::string_view text);

}  // namespace arbalest
