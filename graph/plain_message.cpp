#include "graph/plain_message.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "graph/error.h"

namespace arbalest {
namespace {

// Each line cut to what a terminal may show: names in it come from files and commands, whatever their length. Between
// characters of UTF-8.
std::string with_short_lines(std::string_view text) {
  constexpr size_t kLongest = 1000;
  std::string shown;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    size_t end = line.size();
    if (end > kLongest) {
      for (end = kLongest; end > 0 && (uint8_t(line[end]) & 0xc0u) == 0x80u;) --end;
    }
    shown += line.substr(0, end);
    if (end < line.size()) shown += " …";
    if (line.size() < text.size()) shown += '\n';
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return shown;
}

}  // namespace

std::string plain_message(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "not enough memory on the host";
  if (dynamic_cast<const std::length_error*>(&error)) return "a size exceeds what memory can address";
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    const bool threads = system->code() == std::errc::resource_unavailable_try_again;
    return threads ? "no thread could be started: the limit on processes (ulimit -u) or on memory is reached"
                   : "the system refused: " + system->code().message();
  }
  return with_short_lines(error.what());
}

void warn(const std::string& message) {
  std::fputs(("arbalest: " + printable(with_short_lines(message), true) + "\n").c_str(),
             stderr);  // fmt::print would throw
}

}  // namespace arbalest
