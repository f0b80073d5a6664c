// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace arbalest {

// The library's message without its number.
inline std::string message_of(const nlohmann::json::exception& error) {
  const std::string message = error.what();
  const size_t end = message.find("] ");
  return message.starts_with("[json.exception.") && end != message.npos ? message.substr(end + 2) : message;
}

}  // namespace arbalest
