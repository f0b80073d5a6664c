// SPDX-License-Identifier: Apache-2.0
#include "tools/start/graph_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace arbalest {

size_t GraphText::find(std::string_view part, size_t from) const {
  const size_t at = text_.find(part, from);
  if (at == text_.npos) throw std::logic_error(fmt::format("the template has no '{}'", part));
  return at;
}

size_t GraphText::line_of(std::string_view node) const {
  for (const char* end : {" = ", ", "}) {
    const size_t at = text_.find(fmt::format("\n  {}{}", node, end));
    if (at != text_.npos) return at + 1;
  }
  throw std::logic_error(fmt::format("the template has no node '{}'", node));
}

GraphText::Range GraphText::attribute(std::string_view node, std::string_view name) const {
  const std::string key = fmt::format("{} = ", name);
  const size_t begin = find(key, line_of(node)), value = begin + key.size();
  const char first = text_[value];
  const size_t end = first == '"'   ? find("\"", value + 1) + 1
                     : first == '[' ? find("]", value) + 1
                                    : text_.find_first_of(",>", value);
  return {begin, end};
}

void GraphText::set(std::string_view node, std::string_view name, std::string_view value) {
  const Range range = attribute(node, name);
  text_.replace(range.begin, range.end - range.begin, fmt::format("{} = {}", name, value));
}

int64_t GraphText::number(std::string_view node, std::string_view name) const {
  const Range range = attribute(node, name);
  return std::stoll(text_.substr(range.begin + name.size() + 3, range.end - range.begin));
}

void GraphText::erase(std::string_view node, std::string_view name) {
  Range range = attribute(node, name);
  if (text_.compare(range.begin - 2, 2, ", ") == 0) range.begin -= 2;
  text_.erase(range.begin, range.end - range.begin);
}

void GraphText::comment_out(std::string_view node) {
  text_.insert(line_of(node) + 2, "# ");
}

void GraphText::uncomment(std::string_view node) {
  text_.erase(find(fmt::format("\n  # {} = ", node)) + 3, 2);
}

void GraphText::replace(std::string_view part, std::string_view by) {
  text_.replace(find(part), part.size(), by);
}

void GraphText::replace_all(std::string_view part, std::string_view by) {
  for (size_t at = find(part); at != text_.npos; at = text_.find(part, at + by.size())) {
    text_.replace(at, part.size(), by);
  }
}

}  // namespace arbalest
