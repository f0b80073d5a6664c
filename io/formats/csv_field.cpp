// SPDX-License-Identifier: Apache-2.0
#include "io/formats/csv_field.h"

namespace arbalest {

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

}  // namespace arbalest
