// SPDX-License-Identifier: Apache-2.0
#include "base/plain_message.h"

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

namespace arbalest {
namespace {

// Bytes of the UTF-8 character that `text` begins with; 0 if there is none that may be shown.
size_t shown_character(std::string_view text) {
  const auto byte = [&](size_t i) { return uint8_t(text[i]); };
  const auto first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool too_long = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool no_character = (first == 0xed && byte(1) >= 0xa0) || (first == 0xf4 && byte(1) >= 0x90);
  const bool control = first == 0xc2 && byte(1) < 0xa0;
  // Marks that change the direction of the text around them: U+202A to U+202E and U+2066 to U+2069.
  const bool direction = first == 0xe2 && ((byte(1) == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae) ||
                                           (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9));
  // Code points that are no characters, which XML refuses: U+FDD0 to U+FDEF and the last two of each plane.
  const auto last = byte(length - 1);
  const bool last_of_plane = (last == 0xbe || last == 0xbf) && byte(length - 2) == 0xbf &&
                             (length == 3 ? first == 0xef : length == 4 && (byte(1) & 0x0f) == 0x0f);
  const bool in_block = first == 0xef && byte(1) == 0xb7 && last >= 0x90 && last <= 0xaf;
  return too_long || no_character || control || direction || last_of_plane || in_block ? 0 : length;
}

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
// −1 if there is none.
int without_waiting(std::FILE* out) {
  struct stat status = {};
  const int descriptor = fileno(out);
  if (descriptor < 0 || fstat(descriptor, &status) != 0) return -1;
  if (!S_ISCHR(status.st_mode) && !S_ISFIFO(status.st_mode)) return -1;
  return open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

}  // namespace

std::string shown_text(std::string_view text, bool keep_lines) {
  std::string shown;
  while (!text.empty()) {
    const size_t length = keep_lines && text[0] == '\n' ? 1 : shown_character(text);
    if (length == 0) {
      shown += fmt::format("\\x{:02x}", uint8_t(text[0]));
      text.remove_prefix(1);
    } else {
      shown += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return shown;
}

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
  const std::string lines = shown_text(with_short_lines(message), true);
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
