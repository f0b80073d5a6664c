#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace arbalest {

// What nlohmann::json::sax_parse() calls, for those who look at objects, lists and keys before anything is built of
// them. A callback of parse() would do as well, but then the library looks through all of an object's members whenever
// one of them ends.
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
