// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names that other frameworks have for operators, attributes, commands, options and sources.

#include <span>
#include <string>
#include <string_view>

namespace arbalest {

// The first of `candidates` that is the operator of that name in another domain or other letters, or else the one that
// another framework's `name` stands for. Examples: "arbalest.Linear" for "nn.Linear", "Dense" or "keras.layers.Dense",
// "--epochs" for "--max-epochs". "": none does.
std::string own_name(std::string_view name, std::span<const std::string> candidates);

}  // namespace arbalest
