#pragma once
// Exceptions in words for a user.

#include <exception>
#include <string>

namespace arbalest {

// what(), or, of the standard library's exceptions that name no cause ("std::bad_alloc"), what could not be had.
std::string plain_message(const std::exception& error);

}  // namespace arbalest
