// SPDX-License-Identifier: Apache-2.0
#pragma once
// Exceptions in words for a user, and text that a terminal may show.

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

namespace arbalest {

// `text` as a terminal may show it: control characters, escapes among them, and bytes that are no UTF-8 become "\x1b".
// Lines that end in '\n' stay lines with `keep_lines`.
std::string shown_text(std::string_view text, bool keep_lines);

// what(), or, of the standard library's exceptions that name no cause ("std::bad_alloc"), what could not be had. Lines
// are cut after 1000 bytes.
std::string plain_message(const std::exception& error);

// "arbalest: MESSAGE", as a terminal may show it. Lines after the first begin with four blanks. They may come from a
// name with an end of line in it, and lines of a run's results begin with two at most.
std::string shown_message(std::string_view message);

// Writes to a terminal, a pipe or a file, and waits no longer than this for one that takes nothing (Ctrl-S, a pipe that
// nobody reads). Returns whether all of the text has been written.
bool put_within(std::chrono::milliseconds longest, std::FILE* out, std::string_view text);

}  // namespace arbalest
