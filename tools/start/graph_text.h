// SPDX-License-Identifier: Apache-2.0
#pragma once
// The text of a graph file, of which parts can be changed while comments stay.

#include <cstdint>
#include <string>
#include <string_view>

namespace arbalest {

// Throws std::logic_error if something is not found: the text is one of the command's own.
class GraphText {
 public:
  explicit GraphText(std::string text) : text_(std::move(text)) {}

  const std::string& text() const { return text_; }
  bool has(std::string_view part) const { return text_.find(part) != text_.npos; }

  // Sets, removes or reads an attribute of the node whose first result is `node`.
  void set(std::string_view node, std::string_view attribute, std::string_view value);
  void erase(std::string_view node, std::string_view attribute);
  int64_t number(std::string_view node, std::string_view attribute) const;
  // Makes the node's line a comment, or a comment a line again.
  void comment_out(std::string_view node);
  void uncomment(std::string_view node);
  // Replaces the first occurrence, or all.
  void replace(std::string_view part, std::string_view by);
  void replace_all(std::string_view part, std::string_view by);

 private:
  struct Range {
    size_t begin, end;
  };
  Range attribute(std::string_view node, std::string_view name) const;  // "name = value"
  size_t find(std::string_view part, size_t from = 0) const;
  size_t line_of(std::string_view node) const;

  std::string text_;
};

}  // namespace arbalest
