// SPDX-License-Identifier: Apache-2.0
#pragma once
// The capabilities of a terminal, and text that fits them.

#include <cstdio>
#include <string>
#include <string_view>

namespace arbalest {

// Whether lines of `out` can be replaced by later ones: a terminal that can move its cursor.
bool can_redraw(std::FILE* out);

// Whether colours are wanted there: such a terminal, if NO_COLOR is not set (https://no-color.org).
bool shows_colours(std::FILE* out);

// Columns of a terminal as of now; 80 if `out` is none.
size_t terminal_width(std::FILE* out);

// Characters of UTF-8; each takes one column, except for those of some scripts.
size_t columns_of(std::string_view text);

// The beginning of the text that takes so many columns.
std::string_view first_columns(std::string_view text, size_t columns);

// Lines of no more than `width` columns, those after the first indented.
std::string wrapped(const std::string& text, size_t width, size_t indent = 4);

// Text within an escape sequence that a terminal shows as a colour, and its end.
enum class Shade : uint8_t { Bold = 1, Red = 31, Green = 32, Yellow = 33, Cyan = 36 };
std::string shaded(std::string_view text, Shade shade);

// Every occurrence of `words` in the text, shaded.
std::string shaded_within(const std::string& text, std::string_view words, Shade shade);

// A report whose first line and whose headings, lines that do not begin with a blank, are bold.
std::string with_bold_headings(const std::string& report);

}  // namespace arbalest
