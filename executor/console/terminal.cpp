// SPDX-License-Identifier: Apache-2.0
#include "executor/console/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace arbalest {

bool can_redraw(std::FILE* out) {
  const char* terminal = std::getenv("TERM");
  return isatty(fileno(out)) && terminal != nullptr && std::string_view(terminal) != "dumb";
}

bool shows_colours(std::FILE* out) {
  const char* refused = std::getenv("NO_COLOR");
  return can_redraw(out) && (refused == nullptr || *refused == '\0');
}

size_t terminal_width(std::FILE* out) {
  winsize size = {};
  constexpr size_t kUnknown = 80;
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUnknown;
}

size_t columns_of(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

std::string_view first_columns(std::string_view text, size_t count) {
  size_t end = 0;
  for (size_t taken = 0; end < text.size(); ++end) {
    if ((uint8_t(text[end]) & 0xc0) != 0x80 && taken++ == count) break;
  }
  return text.substr(0, end);
}

std::string wrapped(const std::string& text, size_t width, size_t indent) {
  const std::string blanks(indent, ' ');
  width = std::max(width, 2 * indent + 2);
  std::string lines;
  std::string_view rest = text;
  while (columns_of(rest) > width - (lines.empty() ? 0 : blanks.size())) {
    if (!lines.empty()) lines += blanks;
    const std::string_view fits = first_columns(rest, width - (lines.empty() ? 0 : blanks.size()));
    // After the last blank that fits; a word longer than a line is cut.
    const size_t blank = rest.substr(0, fits.size() + 1).rfind(' ');
    const bool indented_only = blank == rest.npos || rest.substr(0, blank).find_first_not_of(' ') == rest.npos;
    const size_t end = indented_only ? fits.size() : blank;
    lines += rest.substr(0, rest.substr(0, end).find_last_not_of(' ') + 1);
    lines += '\n';
    rest.remove_prefix(end);
    rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(' ')));
  }
  return lines + (lines.empty() || rest.empty() ? "" : blanks) + std::string(rest);
}

std::string shaded(std::string_view text, Shade shade) {
  return fmt::format("\033[{}m{}\033[0m", int(shade), text);
}

std::string shaded_within(const std::string& text, std::string_view words, Shade shade) {
  std::string result;
  size_t from = 0;
  for (size_t at = text.find(words); at != text.npos; at = text.find(words, from)) {
    result += text.substr(from, at - from) + shaded(words, shade);
    from = at + words.size();
  }
  return result + text.substr(from);
}

std::string with_bold_headings(const std::string& report) {
  std::string result;
  for (size_t at = 0; at < report.size();) {
    const size_t end = std::min(report.find('\n', at), report.size());
    const std::string_view line = std::string_view(report).substr(at, end - at);
    result += line.empty() || line[0] == ' ' ? std::string(line) : shaded(line, Shade::Bold);
    if (end < report.size()) result += '\n';
    at = end + 1;
  }
  return result;
}

}  // namespace arbalest
