// SPDX-License-Identifier: Apache-2.0
#include "graph/file/lexer.h"

#include <fmt/format.h>

#include <algorithm>

namespace arbalest {
namespace {

// Not <cctype>: the same in every locale, and defined for bytes above 127.
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The beginning of a token, for messages.
std::string excerpt(std::string_view text) {
  constexpr size_t kLongest = 40;
  return printable(text.substr(0, kLongest)) + (text.size() > kLongest ? "…" : "");
}

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::Identifier:
    case Token::Kind::Punctuation: return fmt::format("'{}'", excerpt(token.text));
    case Token::Kind::Integer:
    case Token::Kind::Real: return fmt::format("number {}", excerpt(token.text));
    case Token::Kind::String: return fmt::format("string {}", excerpt(token.text));
    case Token::Kind::End: break;
  }
  return "the end of the file";
}

bool is_identifier(std::string_view name) {
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c); });
}

void Lexer::fail(int line, int column, const std::string& message) const {
  throw GraphError(Position{*file_, line, column}, message);
}

void Lexer::advance() {
  const char c = text_[at_++];
  if (c == '\n') {
    ++line_;
    column_ = 1;
  } else if ((uint8_t(c) & 0xc0u) != 0x80u) {  // not inside a UTF-8 sequence
    ++column_;
  }
}

void Lexer::skip_blanks() {
  while (at_ < text_.size()) {
    if (is_blank(peek())) {
      advance();
    } else if (peek() == '#') {
      while (at_ < text_.size() && peek() != '\n') advance();
    } else {
      return;
    }
  }
}

Token Lexer::next() {
  skip_blanks();
  Token token;
  token.line = line_;
  token.column = column_;
  if (at_ >= text_.size()) return token;
  const size_t from = at_;
  const char c = peek();
  if (is_letter(c)) {
    token.kind = Token::Kind::Identifier;
    while (is_letter(peek()) || is_digit(peek())) advance();
  } else if (is_digit(c) || c == '-') {
    lex_number(token);
  } else if (c == '"') {
    lex_string(token);
  } else if (std::string_view("<>(){}[],=:.@?").find(c) != std::string_view::npos) {
    token.kind = Token::Kind::Punctuation;
    advance();
    if (c == '=' && peek() == '>') advance();
  } else {
    fail(line_, column_, fmt::format("unexpected character '{}'", excerpt(text_.substr(at_, 1))));
  }
  token.text = text_.substr(from, at_ - from);
  return token;
}

void Lexer::lex_string(Token& token) {
  token.kind = Token::Kind::String;
  advance();
  while (at_ < text_.size() && peek() != '"') {
    if (peek() == '\\') advance();
    if (at_ < text_.size()) advance();
  }
  if (at_ >= text_.size()) fail(token.line, token.column, "the string that starts here does not end; expected '\"'");
  advance();
}

// -?digits[.digits][e[+-]digits], or -inf and -nan (without a sign those are identifiers).
void Lexer::lex_number(Token& token) {
  const size_t from = at_;
  token.kind = Token::Kind::Integer;
  const auto malformed = [&] {
    while (is_letter(peek()) || is_digit(peek()) || peek() == '.') advance();
    fail(token.line, token.column, fmt::format("'{}' is not a number", excerpt(text_.substr(from, at_ - from))));
  };
  const auto digits = [&] {
    if (!is_digit(peek())) malformed();
    while (is_digit(peek())) advance();
  };
  if (peek() == '-') advance();
  if (is_letter(peek())) {
    while (is_letter(peek())) advance();
    const std::string_view word = text_.substr(from + 1, at_ - from - 1);
    if (word != "inf" && word != "nan") malformed();
    token.kind = Token::Kind::Real;
    return;
  }
  digits();
  if (peek() == '.') {
    token.kind = Token::Kind::Real;
    advance();
    while (is_digit(peek())) advance();
  }
  if (peek() == 'e' || peek() == 'E') {
    token.kind = Token::Kind::Real;
    advance();
    if (peek() == '+' || peek() == '-') advance();
    digits();
  }
  if (is_letter(peek()) || peek() == '.') malformed();
}

std::string Lexer::decode(const Token& string) const {
  const std::string_view text = string.text.substr(1, string.text.size() - 2);
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      decoded += text[i];
      continue;
    }
    const char c = text[++i];  // there is one: a lone backslash would have escaped the closing quote
    switch (c) {
      case '"':
      case '\\': decoded += c; break;
      case 'n': decoded += '\n'; break;
      case 't': decoded += '\t'; break;
      case 'r': decoded += '\r'; break;
      case 'x': {
        const int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
        const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
        if (high < 0 || low < 0) fail(string.line, string.column, "'\\x' in a string needs two hexadecimal digits");
        decoded += char(high * 16 + low);
        i += 2;
        break;
      }
      default:
        fail(string.line, string.column,
             fmt::format("unknown escape '\\{}' in a string; expected one of \\\" \\\\ \\n \\t \\r \\xHH",
                         excerpt({&c, 1})));
    }
  }
  return decoded;
}

}  // namespace arbalest
