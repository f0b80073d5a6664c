// SPDX-License-Identifier: Apache-2.0
#pragma once
// Variables of the environment that the command sets for itself. Other programs that a bench measures do not get them.

#include <set>
#include <string>

namespace arbalest {

// Sets the variable, unless its user has set it. Has to be called before other threads read the environment.
void set_own_variable(const std::string& name, const std::string& value);

// The names of the variables that set_own_variable() has set.
const std::set<std::string>& own_variables();

}  // namespace arbalest
