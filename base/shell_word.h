// SPDX-License-Identifier: Apache-2.0
#pragma once
// Words of commands that messages suggest.

#include <string>
#include <string_view>

namespace arbalest {

// `text` as a POSIX shell takes it for one word: as it is, or in single quotes if a character might mean something.
std::string shell_word(std::string_view text);

}  // namespace arbalest
