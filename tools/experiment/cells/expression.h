// SPDX-License-Identifier: Apache-2.0
#pragma once
// Expressions of bench files: "0.1 * learners", "batch > 64 and strategy == 'sma'".

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <variant>

namespace arbalest {

using ExpressionValue = std::variant<double, std::string>;  // conditions are 1 or 0

// The value of a name. Throws GraphError for a name that has none.
using NameValue = std::function<ExpressionValue(const std::string&)>;

// Evaluates numbers, texts in quotes, names, ( ), + - * /, == != < <= > >=, and, or, not, and the functions min, max,
// sqrt, floor, ceil, round and log2. Texts can only be compared. Throws GraphError that says after how many characters
// which word was not expected, or what a value is no number for.
ExpressionValue evaluate(std::string_view text, const NameValue& value_of);

// The number that an expression has; throws GraphError if it is a text or not finite.
double number_of(std::string_view text, const NameValue& value_of);

// A number if the whole text is one, otherwise the text.
ExpressionValue value_of_text(const std::string& text);

// The shortest text that reads back as the number: "0.1", "64".
std::string text_of(double number);

}  // namespace arbalest
