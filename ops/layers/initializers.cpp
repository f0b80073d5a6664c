// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/initializers.h"

#include <fmt/format.h>

#include <cmath>

#include "base/number.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

const std::vector<std::string> kInitializers = {
    "kaiming_normal", "kaiming_normal_fan_in", "kaiming_uniform", "xavier_uniform", "xavier_normal", "zeros", "ones",
    "normal:STD",     "uniform:BOUND"};
constexpr const char* kInitializerDoc =
    "kaiming_uniform (PyTorch's default: weight and bias within 1/sqrt(fan_in)), kaiming_normal (variance 2/fan_out), "
    "kaiming_normal_fan_in (2/fan_in), xavier_uniform, xavier_normal, zeros, ones, normal:STD, uniform:BOUND; biases "
    "are 0 but for kaiming_uniform";

Initializer uniform_initializer(double bound) {
  return {.kind = Initializer::Kind::Uniform, .a = bound};
}

// The number after `prefix`: STD in "normal:STD".
double number_after(const Node& node, const std::string& name, std::string_view prefix, std::string_view form) {
  const auto number = finite_number(std::string_view(name).substr(prefix.size()));
  if (number && *number >= 0) return *number;
  fail(node, fmt::format("attribute 'init' is \"{}\"; expected {} with a number of at least 0", name, form));
}

}  // namespace

Initializer constant_initializer(double value) {
  return {.kind = Initializer::Kind::Constant, .a = value};
}
Initializer normal_initializer(double deviation) {
  return {.kind = Initializer::Kind::Normal, .a = deviation};
}

Initializer weight_initializer(const Node& node, Fans fans) {
  const std::string name = string_attribute(node, "init");
  if (name == "kaiming_normal") return normal_initializer(std::sqrt(2 / fans.out));
  if (name == "kaiming_normal_fan_in") return normal_initializer(std::sqrt(2 / fans.in));
  if (name == "kaiming_uniform") return uniform_initializer(1 / std::sqrt(fans.in));
  if (name == "xavier_uniform") return uniform_initializer(std::sqrt(6 / (fans.in + fans.out)));
  if (name == "xavier_normal") return normal_initializer(std::sqrt(2 / (fans.in + fans.out)));
  if (name == "zeros") return constant_initializer(0);
  if (name == "ones") return constant_initializer(1);
  if (name.starts_with("normal:")) return normal_initializer(number_after(node, name, "normal:", "normal:STD"));
  if (name.starts_with("uniform:")) return uniform_initializer(number_after(node, name, "uniform:", "uniform:BOUND"));
  std::string list;
  for (const std::string& choice : kInitializers) list += (list.empty() ? "" : ", ") + choice;
  fail(node,
       fmt::format("attribute 'init' is \"{}\"; expected one of {}{}", name, list, did_you_mean(name, kInitializers)));
}

Initializer bias_initializer(const Node& node, Fans fans) {
  return string_attribute(node, "init") == "kaiming_uniform" ? uniform_initializer(1 / std::sqrt(fans.in))
                                                             : constant_initializer(0);
}

AttributeSpec init_spec(const char* fallback) {
  return string_spec("init", fallback, kInitializerDoc);
}

}  // namespace arbalest
