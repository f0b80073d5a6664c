#include "graph/plain_message.h"

#include <cstdio>
#include <new>
#include <stdexcept>
#include <system_error>

#include "graph/error.h"

namespace arbalest {

std::string plain_message(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "not enough memory on the host";
  if (dynamic_cast<const std::length_error*>(&error)) return "a size exceeds what memory can address";
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    const bool threads = system->code() == std::errc::resource_unavailable_try_again;
    return threads ? "no thread could be started: the limit on processes (ulimit -u) or on memory is reached"
                   : "the system refused: " + system->code().message();
  }
  return error.what();
}

void warn(const std::string& message) {
  std::fputs(("arbalest: " + printable(message, true) + "\n").c_str(), stderr);  // fmt::print would throw
}

}  // namespace arbalest
