#pragma once
// The page's style, body and script, which bundle.py makes of page/ when the library is built.

#include <string_view>

namespace arbalest {

extern const std::string_view kPageStyle, kPageBody, kPageScript;

}  // namespace arbalest
