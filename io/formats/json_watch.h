// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace arbalest {

// A handler for nlohmann::json::sax_parse() that ignores everything; derived classes watch objects, lists and keys
// before anything is built of them. A callback of parse() would do too, but with one the library goes through all
// members of an object whenever an object ends.
class JsonWatch : public nlohmann::json::json_sax_t {
 public:
  bool null() final { return true; }
  bool boolean(bool) final { return true; }
  bool number_integer(number_integer_t) final { return true; }
  bool number_unsigned(number_unsigned_t) final { return true; }
  bool number_float(number_float_t, const string_t&) final { return true; }
  bool string(string_t&) final { return true; }
  bool binary(binary_t&) final { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) final { return false; }
};

}  // namespace arbalest
