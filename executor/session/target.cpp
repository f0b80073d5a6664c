// SPDX-License-Identifier: Apache-2.0
#include "executor/session/target.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/number.h"

namespace arbalest {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string range_text(const std::string& metric, double least, double most) {
  if (std::isinf(most)) return fmt::format("'{}' is never below {:g}", metric, least);
  if (std::isinf(least)) return fmt::format("'{}' is never above {:g}", metric, most);
  return fmt::format("'{}' is {:g} to {:g}", metric, least, most);
}

}  // namespace

bool Target::met(double value) const {
  switch (op) {
    case Op::GreaterEqual: return value >= threshold;
    case Op::Greater: return value > threshold;
    case Op::LessEqual: return value <= threshold;
    case Op::Less: return value < threshold;
  }
  return false;
}

std::string to_string(const Target& target) {
  constexpr std::string_view kNames[] = {">=", ">", "<=", "<"};
  return fmt::format("{} {} {}", target.metric, kNames[size_t(target.op)], target.threshold);
}

Target parse_target(std::string_view text) {
  const auto fail = [&](const std::string& what) {
    return GraphError(
        fmt::format("target '{}': {}; expected METRIC, one of >= > <= <, and a number, as in "
                    "'accuracy >= 0.94'",
                    text, what));
  };
  const size_t at = text.find_first_of("<>=");
  if (at == text.npos) throw fail("found no comparison");
  Target target;
  target.metric = trimmed(text.substr(0, at));
  if (target.metric.empty()) throw fail("found no metric");
  if (target.metric.find_first_of(" \t") != target.metric.npos) throw fail("the metric's name has a space");

  const size_t length = text.substr(at).find_first_not_of("<>=");
  const std::string_view op = text.substr(at, length);
  if (op == ">=") {
    target.op = Target::Op::GreaterEqual;
  } else if (op == ">") {
    target.op = Target::Op::Greater;
  } else if (op == "<=") {
    target.op = Target::Op::LessEqual;
  } else if (op == "<") {
    target.op = Target::Op::Less;
  } else {
    throw fail(fmt::format("found comparison '{}'", op));
  }
  const std::string_view number = length == text.npos ? std::string_view{} : trimmed(text.substr(at + length));
  const auto threshold = read_number<double>(number);
  if (!threshold) throw fail(fmt::format("found '{}' where a number should be", number));
  if (!std::isfinite(*threshold)) throw fail(fmt::format("'{}' is not finite", number));
  target.threshold = *threshold;
  return target;
}

void check_in_reach(const Target& target, double least, double most, const std::string& option) {
  if (target.met(least) || target.met(most)) return;
  const bool percent = target.threshold > 1 && target.threshold <= 100 && least == 0 && most == 1;
  throw GraphError(
      fmt::format("{} cannot be reached: {}{}", option, range_text(target.metric, least, most),
                  percent ? fmt::format("; {} % is {:.6g}", target.threshold, target.threshold / 100) : std::string()));
}

}  // namespace arbalest
