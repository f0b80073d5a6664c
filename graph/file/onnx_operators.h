// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace arbalest {

// Whether ONNX's own domain has an operator of that name, up to opset 28, whether or not it is supported here.
bool is_onnx_operator(std::string_view name);

}  // namespace arbalest
