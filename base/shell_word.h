// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts that other programs read as they are: words of commands that messages suggest, fields of tables.

#include <string>
#include <string_view>

namespace arbalest {

// `text` as a POSIX shell takes it for one word: as it is, or in single quotes if a character might mean something.
std::string shell_word(std::string_view text);

// `text` as RFC 4180 has it for one field of a line of CSV: in quotes if it holds a comma, a quote or the end of a
// line.
std::string csv_field(std::string_view text);

}  // namespace arbalest
