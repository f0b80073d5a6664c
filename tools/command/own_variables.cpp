// SPDX-License-Identifier: Apache-2.0
#include "tools/command/own_variables.h"

#include <cstdlib>

namespace arbalest {
namespace {

std::set<std::string>& own_names() {
  static std::set<std::string> all;
  return all;
}

}  // namespace

void set_own_variable(const std::string& name, const std::string& value) {
  if (std::getenv(name.c_str()) != nullptr) return;
  setenv(name.c_str(), value.c_str(), 0);
  own_names().insert(name);
}

const std::set<std::string>& own_variables() {
  return own_names();
}

}  // namespace arbalest
