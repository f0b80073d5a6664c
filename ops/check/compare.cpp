// SPDX-License-Identifier: Apache-2.0
#include "ops/check/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <vector>

namespace arbalest::test {
namespace {

// How many times the tolerance the error is; more than 1 is wrong.
double excess(double found, double expected, Tolerance tolerance) {
  constexpr double kHopeless = std::numeric_limits<double>::infinity();
  if (std::isnan(found) || std::isnan(expected)) return std::isnan(found) && std::isnan(expected) ? 0 : kHopeless;
  if (found == expected) return 0;
  if (std::isinf(found) || std::isinf(expected)) return kHopeless;
  const double allowed = tolerance.absolute + tolerance.relative * std::abs(expected);
  return allowed > 0 ? std::abs(found - expected) / allowed : kHopeless;
}

std::vector<size_t> index_of(size_t element, const Shape& shape) {
  std::vector<size_t> index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = element % size_t(shape[axis]);
    element /= size_t(shape[axis]);
  }
  return index;
}

}  // namespace

std::string worst_element(const Shape& shape, std::span<const double> found, std::span<const double> expected,
                          Tolerance tolerance) {
  if (found.size() != expected.size()) {
    return fmt::format("{} elements found, {} expected", found.size(), expected.size());
  }
  size_t worst = 0, wrong = 0;
  double most = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double times = excess(found[i], expected[i], tolerance);
    if (times > 1) ++wrong;
    if (times > most) worst = i, most = times;
  }
  if (wrong == 0) return "";
  return fmt::format("{} of {} elements are wrong, the worst at ({}): found {:.9g}, expected {:.9g} (within {:.3g})",
                     wrong, found.size(), fmt::join(index_of(worst, shape), ", "), found[worst], expected[worst],
                     tolerance.absolute + tolerance.relative * std::abs(expected[worst]));
}

double root_mean_square(std::span<const double> values) {
  double sum = 0;
  size_t count = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    sum += value * value;
    ++count;
  }
  return count > 0 ? std::sqrt(sum / double(count)) : 0;
}

}  // namespace arbalest::test
