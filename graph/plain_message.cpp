#include "graph/plain_message.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

// A terminal or a pipe, opened once more so that writing never waits; the descriptor that others share stays as it is.
// −1 where there is none.
int without_waiting(std::FILE* out) {
  struct stat status = {};
  const int descriptor = fileno(out);
  if (descriptor < 0 || fstat(descriptor, &status) != 0) return -1;
  if (!S_ISCHR(status.st_mode) && !S_ISFIFO(status.st_mode)) return -1;
  return open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
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

std::string shown_message(std::string_view message) {
  constexpr size_t kIndent = 4;
  const std::string lines = printable(with_short_lines(message), true);
  std::string text = "arbalest: ";
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const size_t blanks = std::min(lines.find_first_not_of(' ', at), end) - at;
    if (at > 0) text += '\n' + std::string(kIndent - std::min(kIndent, blanks), ' ');
    text += lines.substr(at, end - at);
    at = end + 1;
  }
  return text + '\n';
}

void warn(const std::string& message) {
  put_within(std::chrono::seconds(1), stderr, shown_message(message));
}

bool put_within(std::chrono::milliseconds longest, std::FILE* out, std::string_view text) {
  const int descriptor = without_waiting(out);
  if (descriptor < 0) {
    return std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
  }
  std::fflush(out);  // what was written there before
  const auto until = std::chrono::steady_clock::now() + longest;
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written > 0) text.remove_prefix(size_t(written));
    if (written > 0 || (written < 0 && errno == EINTR)) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (written == 0 || errno != EAGAIN || left.count() <= 0) break;
    pollfd room = {descriptor, POLLOUT, 0};
    poll(&room, 1, int(std::min<int64_t>(left.count(), 100)));
  }
  close(descriptor);
  return text.empty();
}

}  // namespace arbalest
