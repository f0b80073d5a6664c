#include "tools/watch/event_stream.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "graph/error.h"
#include "graph/plain_message.h"

namespace arbalest {

EventStream::EventStream(const std::string& path, std::string what, bool goes_on)
    : path_(path), what_(std::move(what)), file_(std::fopen(path.c_str(), goes_on ? "a" : "w"), std::fclose) {
  if (!file_) throw RunError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

void EventStream::cut(int64_t bytes) {
  if (!file_ || ftruncate(fileno(file_.get()), bytes) == 0) return;
  warn(fmt::format("{}: cannot be cut: {}; the {} repeats what it holds", path_, std::strerror(errno), what_));
}

void EventStream::write(std::string_view bytes) {
  if (!file_) return;
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size() && std::fflush(file_.get()) == 0) return;
  warn(
      fmt::format("{}: cannot be written: {}; the {} ends here, training goes on", path_, std::strerror(errno), what_));
  file_.reset();
}

}  // namespace arbalest
