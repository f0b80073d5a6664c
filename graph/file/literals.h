// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a graph file that structure is made of: names, numbers, types, lists, tensors, lists of typed values.

#include <charconv>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "graph/file/graph_source.h"
#include "graph/file/lexer.h"

namespace arbalest {

// Reads ahead by one token. Every parse_ function starts at token_ and leaves it after what it read, or throws
// GraphError.
class LiteralReader {
 protected:
  LiteralReader(std::string_view text, const std::string& file) : lexer_(text, file) { token_ = lexer_.next(); }

  [[noreturn]] void fail(const Token& at, const std::string& message) const {
    throw GraphError(lexer_.position(at), message);
  }
  [[noreturn]] void unexpected(const std::string& expected) const {
    fail(token_, fmt::format("found {}, expected {}{}", describe(token_), expected, unclosed_hint()));
  }
  Token take() {
    const Token taken = token_;
    follow(taken);
    token_ = lexer_.next();
    return taken;
  }
  bool accept(std::string_view punctuation) {
    if (!token_.is(punctuation)) return false;
    take();
    return true;
  }
  void expect(std::string_view punctuation) {
    if (!accept(punctuation)) unexpected(fmt::format("'{}'", punctuation));
  }
  // After an item of a list: another follows, or the list ends.
  bool more(std::string_view close) {
    if (accept(",")) return true;
    if (!accept(close)) unexpected(fmt::format("',' or '{}'", close));
    return false;
  }
  Token lookahead() const { return Lexer(lexer_).next(); }
  static SourcePlace place(const Token& token) { return {token.line, token.column}; }

  Token expect_kind(Token::Kind kind, const std::string& expected) {
    if (token_.kind != kind) unexpected(expected);
    return take();
  }
  std::string parse_string(const std::string& what) {
    return lexer_.decode(expect_kind(Token::Kind::String, what + " in quotes"));
  }

  // An identifier, or any text in quotes.
  SourceName parse_name(const std::string& what);

  template <typename T>
  T parse_number(const Token& token) const {
    T value{};
    const auto [end, status] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
    if (status == std::errc::result_out_of_range) {
      fail(token, fmt::format("{} does not fit in {} bits", describe(token), 8 * sizeof(T)));
    }
    if (status != std::errc() || end != token.text.data() + token.text.size()) {
      fail(token, fmt::format("found {}, expected {}", describe(token),
                              std::is_integral_v<T> ? "a whole number" : "a number"));
    }
    return value;
  }
  uint8_t parse_flag(const Token& token) const;
  int64_t parse_integer(const std::string& what) {
    return parse_number<int64_t>(expect_kind(Token::Kind::Integer, what));
  }

  // Numbers that look like words.
  bool at_word() const {
    return token_.kind == Token::Kind::Identifier && (token_.text == "inf" || token_.text == "nan");
  }
  bool at_number() const {
    return at_word() || token_.kind == Token::Kind::Integer || token_.kind == Token::Kind::Real;
  }

  // [type] name [= {data}]
  SourceValue parse_value();
  std::vector<SourceValue> parse_values(std::string_view open, std::string_view close);
  // float[2] {1, 2}, as Constant has it
  SourceTensor parse_tensor();
  // A number or text.
  Attribute parse_scalar();
  // After '[': all text, or all numbers. If integers and reals are mixed, integers become reals.
  Attribute parse_list();

  Token token_;

 private:
  // A hint for an error message: an opening bracket or quote that may be unclosed, with its line. "" if there is none.
  std::string unclosed_hint() const;
  void follow(const Token& taken);

  void parse_type(SourceValue& value);
  void parse_extent(SourceValue& value);
  void parse_element(DataType dtype, std::vector<std::byte>& bytes);
  std::shared_ptr<const std::vector<std::byte>> parse_data(const SourceValue& value, const std::string& what,
                                                           const Token& at);

  Lexer lexer_;
  std::vector<Token> open_;  // brackets that are not closed yet, the innermost last
  int string_of_lines_ = 0;  // line on which the latest string with a line end in it begins; 0: none
  bool at_header_ = false;   // the latest tokens are "domain:" or another key of a function's header
};

}  // namespace arbalest
