// SPDX-License-Identifier: Apache-2.0
#include "tools/watch/json_lines.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "base/files/file.h"
#include "base/process.h"
#include "io/formats/json_error.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

// The fault of a line; "": it has none.
std::string fault_of(std::string_view text, const std::function<void(const Json&)>& read) {
  try {
    const Json line = Json::parse(text);
    if (!line.is_object()) return fmt::format("found {}, expected an object", line.type_name());
    if (!line.contains("event") || !line["event"].is_string()) return "expected an object with an \"event\"";
    read(line);
    return "";
  } catch (const Json::parse_error& error) {
    // "parse error at line 1, column 9: …": each line is a text of its own to the parser.
    const std::string message = message_of(error);
    const size_t column = message.find("column ");
    return "no JSON: " + (column == message.npos ? message : message.substr(column));
  } catch (const Json::exception& error) {
    return message_of(error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

JsonLines read_json_lines(const std::string& path, const std::function<void(const Json&)>& read) {
  JsonLines lines;
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) return lines;
  const std::vector<uint8_t> bytes = read_file(path, kMostText);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  int64_t number = 0;
  for (size_t at = 0, end = 0; (end = text.find('\n', at)) != text.npos; at = end + 1) {
    ++number;
    const std::string fault = fault_of(text.substr(at, end - at), read);
    if (fault.empty()) {
      ++lines.read;
    } else {
      lines.faults.push_back(fmt::format("{}:{}: {}", path, number, fault));
    }
    lines.whole = int64_t(end) + 1;
  }
  return lines;
}

void warn_of_faults(const std::vector<std::string>& faults) {
  for (const std::string& fault : faults) warn(fault + "; the line counts as if it were not there");
}

}  // namespace arbalest
