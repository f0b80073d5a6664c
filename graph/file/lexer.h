// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens of a graph file, each with its place.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace arbalest {

struct Token {
  enum class Kind : uint8_t { Identifier, Integer, Real, String, Punctuation, End };
  Kind kind = Kind::End;
  std::string_view text;  // as in the file; a string with its quotes
  int line = 1;
  int column = 1;  // in characters, not bytes

  bool is(std::string_view punctuation) const { return kind == Kind::Punctuation && text == punctuation; }
};

// "'Relu'", "number 3", "string \"abc\"", "the end of the file": for messages; shortened if long.
std::string describe(const Token& token);

// Letters, digits and '_', not starting with a digit: what libonnx accepts as a name without quotes.
bool is_identifier(std::string_view name);

// Reads one token after the other; never looks past the text. Copies are cheap: a copy looks ahead.
class Lexer {
 public:
  Lexer(std::string_view text, const std::string& file) : text_(text), file_(&file) {}
  // Throws GraphError: a character no token starts with, a string that does not end, a malformed number.
  Token next();
  // A String token without its quotes and with escapes resolved.
  std::string decode(const Token& string) const;
  Position position(const Token& token) const { return {*file_, token.line, token.column}; }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  void advance();
  void skip_blanks();
  void lex_string(Token& token);
  void lex_number(Token& token);
  [[noreturn]] void fail(int line, int column, const std::string& message) const;

  std::string_view text_;
  const std::string* file_;
  size_t at_ = 0;
  int line_ = 1;
  int column_ = 1;
};

}  // namespace arbalest
