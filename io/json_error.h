#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <utility>

namespace arbalest {

// The library's message without its number and position.
inline std::string message_of(const nlohmann::json::exception& error) {
  std::string message = error.what();
  for (const auto& [prefix, end] : {std::pair("[json.exception.", "] "), std::pair("parse error", ": ")}) {
    const size_t at = message.find(end);
    if (message.starts_with(prefix) && at != message.npos) message.erase(0, at + 2);
  }
  return message;
}

}  // namespace arbalest
