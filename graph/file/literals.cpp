// SPDX-License-Identifier: Apache-2.0
#include "graph/file/literals.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace arbalest {
namespace {

constexpr size_t kLongestName = 1024;

std::optional<DataType> element_type(std::string_view name) {
  for (const DataType type : kElementTypes) {
    if (name_of(type) == name) return type;
  }
  return std::nullopt;
}

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const size_t at = bytes.size();
  bytes.resize(at + sizeof(T));
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

char closing(char open) {
  switch (open) {
    case '(': return ')';
    case '[': return ']';
    case '{': return '}';
    case '<': return '>';
    default: return 0;
  }
}

}  // namespace

void LiteralReader::follow(const Token& taken) {
  if (taken.kind == Token::Kind::String && taken.text.find('\n') != taken.text.npos) string_of_lines_ = taken.line;
  const bool header_key = taken.text == "domain" || taken.text == "opset_import" || taken.text == "doc_string";
  at_header_ = taken.kind == Token::Kind::Identifier ? header_key && !open_.empty() && open_.back().is("<")
                                                     : at_header_ && taken.is(":");
  if (taken.kind != Token::Kind::Punctuation || taken.text.size() != 1) return;
  if (closing(taken.text[0]) != 0) {
    open_.push_back(taken);
  } else if (!open_.empty() && taken.text[0] == closing(open_.back().text[0])) {
    open_.pop_back();
  }
}

std::string LiteralReader::unclosed_hint() const {
  if (string_of_lines_ > 0) {
    return fmt::format("; a string that begins on line {} goes on over the end of its line: is a quote missing there?",
                       string_of_lines_);
  }
  if (open_.empty()) return "";
  // A function's header among nodes reads as attributes of the node before it.
  const bool function_begins = at_header_ && open_.size() > 1 && open_[open_.size() - 2].is("{");
  const Token& innermost = function_begins ? open_[open_.size() - 2] : open_.back();
  const char found = token_.kind == Token::Kind::Punctuation && token_.text.size() == 1 ? token_.text[0] : 0;
  const bool ends = token_.kind == Token::Kind::End;
  const bool closes_another = std::string_view(")]}>").find(found) != std::string_view::npos && found != 0 &&
                              found != closing(innermost.text[0]);
  // Nodes take a line each, so that a list which goes on there was not meant to; and none begins with '<'.
  const bool begins_anew = innermost.is("{") ? found == '<' : token_.line > innermost.line;
  if (!ends && !closes_another && !begins_anew && !function_begins) return "";
  return fmt::format("; the '{}' on line {} is not closed", innermost.text, innermost.line);
}

SourceName LiteralReader::parse_name(const std::string& what) {
  if (token_.kind != Token::Kind::Identifier && token_.kind != Token::Kind::String) unexpected(what);
  const Token token = take();
  SourceName name{token.kind == Token::Kind::String ? lexer_.decode(token) : std::string(token.text), place(token)};
  if (name.text.size() > kLongestName) fail(token, fmt::format("a name is longer than {} bytes", kLongestName));
  return name;
}

// float, float[2, 3], float[N, ?]. float[] is ONNX's "of unknown rank": no type.
void LiteralReader::parse_type(SourceValue& value) {
  const Token name = take();
  const std::optional<DataType> found = element_type(name.text);
  if (!found) {
    std::vector<std::string> names;
    for (const DataType type : kElementTypes) names.emplace_back(name_of(type));
    fail(name, fmt::format("unknown or unsupported type {}, expected one of {}{}", describe(name),
                           fmt::join(names, ", "), did_you_mean(name.text, names)));
  }
  value.type = TensorType{*found, {}};
  if (!accept("[")) return;
  if (accept("]")) {
    value.type.reset();
    return;
  }
  do {
    parse_extent(value);
  } while (more("]"));
  Shape known = value.type->shape;
  std::replace(known.begin(), known.end(), int64_t{-1}, int64_t{1});
  if (!checked_element_count(known)) fail(name, fmt::format("{} is too large", to_string(*value.type)));
}

void LiteralReader::parse_extent(SourceValue& value) {
  int64_t extent = -1;
  std::string symbol;
  if (token_.kind == Token::Kind::Integer) {
    const Token number = take();
    extent = parse_number<int64_t>(number);
    if (extent < 0) fail(number, fmt::format("found {}, expected an extent of 0 or more", describe(number)));
  } else if (!accept("?")) {
    symbol = parse_name("a dimension: a number, a name or '?'").text;
  }
  value.type->shape.push_back(extent);
  value.symbols.push_back(std::move(symbol));
}

SourceValue LiteralReader::parse_value() {
  SourceValue value;
  const Token first = token_;
  if (token_.kind == Token::Kind::Identifier) {
    const Token after = lookahead();
    const bool untyped = after.is(",") || after.is(")") || after.is(">") || after.is("=");
    if (!untyped) parse_type(value);
  }
  value.name = parse_name("a type and a name");
  if (value.name.text.empty()) fail(first, "found an empty name, expected the name of a value");
  if (accept("=")) {
    if (!value.type) fail(first, fmt::format("initialiser '{}' needs a type and a shape", value.name.text));
    value.data = parse_data(value, fmt::format("'{}'", value.name.text), first);
  }
  return value;
}

std::vector<SourceValue> LiteralReader::parse_values(std::string_view open, std::string_view close) {
  std::vector<SourceValue> values;
  expect(open);
  if (accept(close)) return values;
  do {
    values.push_back(parse_value());
  } while (more(close));
  return values;
}

uint8_t LiteralReader::parse_flag(const Token& token) const {
  const auto value = parse_number<uint8_t>(token);
  if (value > 1) fail(token, fmt::format("found {}, expected 0 or 1", describe(token)));
  return value;
}

void LiteralReader::parse_element(DataType dtype, std::vector<std::byte>& bytes) {
  if (!at_number()) unexpected("a number");
  const Token token = take();
  switch (dtype) {
    case DataType::Float32: return append(bytes, parse_number<float>(token));
    case DataType::Float64: return append(bytes, parse_number<double>(token));
    case DataType::Bfloat16: return append(bytes, parse_number<uint16_t>(token));  // ONNX states their bits
    case DataType::Bool: return append(bytes, parse_flag(token));
    case DataType::Uint8: return append(bytes, parse_number<uint8_t>(token));
    case DataType::Int32: return append(bytes, parse_number<int32_t>(token));
    case DataType::Int64: return append(bytes, parse_number<int64_t>(token));
    case DataType::String:
    case DataType::Token: break;
  }
}

// {1, 2, 3}: as many as the type has elements; memory grows with the text, not with the stated shape.
std::shared_ptr<const std::vector<std::byte>> LiteralReader::parse_data(const SourceValue& value,
                                                                        const std::string& what, const Token& at) {
  const TensorType& type = *value.type;
  if (std::find(type.shape.begin(), type.shape.end(), -1) != type.shape.end()) {
    fail(at, fmt::format("the initial value {} needs a shape of numbers, found {}", what, to_string(type)));
  }
  const int64_t expected = type.elements();
  auto bytes = std::make_shared<std::vector<std::byte>>();
  int64_t count = 0;
  expect("{");
  if (!token_.is("}")) {
    do {
      if (count == expected) unexpected(fmt::format("'}}': {} has {} elements", what, expected));
      parse_element(type.dtype, *bytes);
      ++count;
    } while (accept(","));
  }
  if (count != expected) {
    unexpected(fmt::format("{}: {} has {} elements, {} given", token_.is("}") ? "more numbers" : "',' or '}'", what,
                           expected, count));
  }
  expect("}");
  return bytes;
}

SourceTensor LiteralReader::parse_tensor() {
  const Token start = token_;
  if (!element_type(token_.text)) {
    unexpected("a value: a number, text in quotes, a list, '@name', or a tensor such as float[2] {1, 2}");
  }
  SourceValue value;
  parse_type(value);
  if (token_.kind == Token::Kind::Identifier) take();  // its name says nothing here
  accept("=");
  if (!value.type) fail(start, "a tensor needs a shape");
  auto data = parse_data(value, "the tensor", start);
  return {*value.type, std::move(data)};
}

Attribute LiteralReader::parse_scalar() {
  switch (token_.kind) {
    case Token::Kind::Integer: return parse_number<int64_t>(take());
    case Token::Kind::Real:
    case Token::Kind::Identifier: return parse_number<double>(take());
    case Token::Kind::String: return lexer_.decode(take());
    default: unexpected("a value: a number, text in quotes, a list, or '@name'");
  }
}

Attribute LiteralReader::parse_list() {
  std::vector<int64_t> integers;
  std::vector<double> reals;
  std::vector<std::string> texts;
  if (accept("]")) return integers;
  do {
    const Token item = token_;
    const bool number = at_number();
    if (!number && item.kind != Token::Kind::String) unexpected("a number or text in quotes");
    if (number ? !texts.empty() : !reals.empty()) unexpected(number ? "text in quotes" : "a number");
    if (!number) {
      texts.push_back(lexer_.decode(take()));
      continue;
    }
    if (item.kind == Token::Kind::Integer && integers.size() == reals.size()) {
      integers.push_back(parse_number<int64_t>(item));
    }
    reals.push_back(parse_number<double>(take()));
  } while (more("]"));
  if (!texts.empty()) return texts;
  if (integers.size() == reals.size()) return integers;
  return reals;
}

}  // namespace arbalest
