#pragma once
// Exceptions and warnings in words for a user.

#include <exception>
#include <string>

namespace arbalest {

// what(), or, of the standard library's exceptions that name no cause ("std::bad_alloc"), what could not be had. Lines
// are cut after 1000 bytes.
std::string plain_message(const std::exception& error);

// Writes to standard error. Where that cannot be written (a terminal that was closed), the run goes on.
void warn(const std::string& message);

}  // namespace arbalest
