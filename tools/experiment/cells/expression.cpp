// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/cells/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/number.h"

namespace arbalest {
namespace {

constexpr std::array<std::string_view, 7> kFunctions = {"min", "max", "sqrt", "floor", "ceil", "round", "log2"};

constexpr int kMostDepth = 128;  // two of each pair of brackets

// Reads from left to right, a function for each level of binding.
class Evaluation {
 public:
  Evaluation(std::string_view text, const NameValue& value_of) : text_(text), value_of_(value_of) { next(); }

  ExpressionValue whole() {
    ExpressionValue value = either();
    if (!word_.empty()) fail("an operator or the end");
    return value;
  }

 private:
  // A level of recursion.
  class Level {
   public:
    explicit Level(Evaluation& of) : of_(of) {
      if (++of_.depth_ > kMostDepth) of_.fail("less nesting");
    }
    ~Level() { --of_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Evaluation& of_;
  };

  [[noreturn]] void fail(const std::string& expected) const {
    throw GraphError(fmt::format("expression '{}': found {} after {} characters, expected {}", text_,
                                 word_.empty() ? "its end" : fmt::format("'{}'", word_), at_ - word_.size(), expected));
  }
  double number(const ExpressionValue& value) const {
    if (const double* number = std::get_if<double>(&value)) return *number;
    throw GraphError(
        fmt::format("expression '{}': found the text '{}', expected a number", text_, std::get<std::string>(value)));
  }

  void next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const size_t begin = at_;
    const auto is = [&](auto of) { return at_ < text_.size() && of(static_cast<unsigned char>(text_[at_])); };
    const auto in_name = [](int c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
    if (is([](int c) { return std::isdigit(c) != 0 || c == '.'; })) {
      double value = 0;
      const auto read = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
      at_ = std::max(size_t(read.ptr - text_.data()), at_ + 1);
    } else if (is([](int c) { return std::isalpha(c) != 0 || c == '_'; })) {
      while (is(in_name)) ++at_;
    } else if (is([](int c) { return c == '\'' || c == '"'; })) {
      const size_t end = text_.find(text_[at_], at_ + 1);
      at_ = end == text_.npos ? text_.size() : end + 1;
      word_ = text_.substr(begin, at_ - begin);
      if (end == text_.npos) fail("a closing quote");
    } else if (at_ < text_.size()) {
      const std::string_view two = text_.substr(at_, 2);
      at_ += two == "==" || two == "!=" || two == "<=" || two == ">=" ? 2 : 1;
    }
    word_ = text_.substr(begin, at_ - begin);
  }
  bool take(std::string_view word) {
    if (word_ != word) return false;
    next();
    return true;
  }

  ExpressionValue either() {
    ExpressionValue left = both();
    while (take("or")) {
      const double right = number(both());
      left = double(number(left) != 0 || right != 0);
    }
    return left;
  }
  ExpressionValue both() {
    ExpressionValue left = negated();
    while (take("and")) {
      const double right = number(negated());
      left = double(number(left) != 0 && right != 0);
    }
    return left;
  }
  ExpressionValue negated() {
    const Level level(*this);
    if (take("not")) return double(number(negated()) == 0);
    return comparison();
  }
  ExpressionValue comparison() {
    const ExpressionValue left = sum();
    for (const std::string_view sign : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (!take(sign)) continue;
      const ExpressionValue right = sum();
      if (sign == "==") return double(left == right);
      if (sign == "!=") return double(left != right);
      const double a = number(left), b = number(right);
      return double(sign == "<=" ? a <= b : sign == ">=" ? a >= b : sign == "<" ? a < b : a > b);
    }
    return left;
  }
  ExpressionValue sum() {
    ExpressionValue left = product();
    for (;;) {
      if (take("+")) {
        left = number(left) + number(product());
      } else if (take("-")) {
        left = number(left) - number(product());
      } else {
        return left;
      }
    }
  }
  ExpressionValue product() {
    ExpressionValue left = factor();
    for (;;) {
      if (take("*")) {
        left = number(left) * number(factor());
      } else if (take("/")) {
        left = number(left) / number(factor());
      } else {
        return left;
      }
    }
  }
  ExpressionValue factor() {
    const Level level(*this);
    if (take("-")) return -number(factor());
    if (take("(")) {
      ExpressionValue value = either();
      if (!take(")")) fail("')'");
      return value;
    }
    const std::string word(word_);
    if (word.empty()) fail("a value");
    if (word[0] == '\'' || word[0] == '"') {
      next();
      return word.substr(1, word.size() - 2);
    }
    if (std::isdigit(static_cast<unsigned char>(word[0])) != 0 || word[0] == '.') {
      const ExpressionValue value = value_of_text(word);
      if (!std::holds_alternative<double>(value)) fail("a number");
      next();
      return value;
    }
    if (std::isalpha(static_cast<unsigned char>(word[0])) == 0 && word[0] != '_') fail("a value");
    next();
    if (word_ == "(" && std::find(kFunctions.begin(), kFunctions.end(), word) != kFunctions.end()) return call(word);
    return value_of_(word);
  }
  ExpressionValue call(const std::string& function) {
    std::vector<double> values;
    do {
      next();
      values.push_back(number(either()));
    } while (word_ == ",");
    if (!take(")")) fail("',' or ')'");
    if (function == "min") return *std::min_element(values.begin(), values.end());
    if (function == "max") return *std::max_element(values.begin(), values.end());
    if (values.size() > 1) {
      throw GraphError(fmt::format("expression '{}': {} takes one value, found {}", text_, function, values.size()));
    }
    if (function == "sqrt") return std::sqrt(values[0]);
    if (function == "floor") return std::floor(values[0]);
    if (function == "ceil") return std::ceil(values[0]);
    return function == "round" ? std::round(values[0]) : std::log2(values[0]);
  }

  const std::string_view text_;
  const NameValue& value_of_;
  size_t at_ = 0;  // after the word
  int depth_ = 0;
  std::string_view word_;  // "": the end
};

}  // namespace

ExpressionValue evaluate(std::string_view text, const NameValue& value_of) {
  return Evaluation(text, value_of).whole();
}

double number_of(std::string_view text, const NameValue& value_of) {
  const ExpressionValue value = evaluate(text, value_of);
  const double* number = std::get_if<double>(&value);
  if (number && std::isfinite(*number)) return *number;
  throw GraphError(fmt::format("expression '{}': found {}, expected a finite number", text,
                               number ? text_of(*number) : fmt::format("'{}'", std::get<std::string>(value))));
}

ExpressionValue value_of_text(const std::string& text) {
  if (text.find_first_of("0123456789") == text.npos) return text;  // "inf" among them
  if (const auto number = read_number<double>(text)) return *number;
  return text;
}

std::string text_of(double number) {
  return fmt::format("{}", number);
}

}  // namespace arbalest
