// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times, counts and shares as a reader of a report sees them. The page writes its own alike: tools/page/names.js.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace arbalest {

// Thousands apart, by a narrow space where no line is broken: "12 345".
inline std::string grouped(int64_t count) {
  std::string text = std::to_string(count);
  const size_t first = count < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) text.insert(at -= 3, "\u202f");
  return text;
}

// "1 batch", "3 600 batches".
inline std::string counted(int64_t count, const std::string& one, const std::string& many) {
  return grouped(count) + ' ' + (count == 1 ? one : many);
}
inline std::string counted(int64_t count, const std::string& one) {
  return counted(count, one, one + 's');
}

// With the unit that suits it, and three digits: "1.57 ms", "16.6 ms", "491 ms".
inline std::string duration(double ns) {
  const auto digits = [](double value, const char* unit) {
    if (value >= 999.5) return grouped(int64_t(value + 0.5)) + ' ' + unit;
    return fmt::format("{:.{}f} {}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, unit);
  };
  if (ns < 999.5) return fmt::format("{:.0f} ns", ns);
  if (ns < 999.5e3) return digits(ns / 1e3, "µs");
  if (ns < 999.5e6) return digits(ns / 1e6, "ms");
  return digits(ns / 1e9, "s");
}

// Formats a share in percent: "2.6 %", "41 %", "99.7 %". A share that is nearly nothing or nearly all does not become
// "0 %" or "100 %".
inline std::string in_percent(double share) {
  if (share <= 0) return "0 %";
  if (share < 0.0005) return "under 0.1 %";
  if (share >= 0.9995 && share < 1) return "over 99.9 %";
  return fmt::format("{:.{}f} %", 100 * share, share < 0.0995 || (share >= 0.995 && share < 1) ? 1 : 0);
}

// A table's column of times, in ns, in the unit of the median of those that are not zero: the heading names it.
class TimeColumn {
 public:
  explicit TimeColumn(std::string name) : name_(std::move(name)) {}
  void add(double ns) { times_.push_back(ns); }
  void add(int64_t ns) { add(double(ns)); }

  std::string heading() const { return fmt::format("{}, {}", name_, unit().name); }
  std::string cell(size_t row) const { return fmt::format("{:.{}f}", times_[row] / unit().ns, unit().decimals); }

 private:
  struct Unit {
    double ns;
    const char* name;
    int decimals;
  };
  const Unit& unit() const {
    static constexpr Unit kUnits[] = {{1e9, "s", 2}, {1e6, "ms", 2}, {1e3, "µs", 1}, {1, "ns", 0}};
    std::vector<double> sorted;
    std::copy_if(times_.begin(), times_.end(), std::back_inserter(sorted), [](double time) { return time > 0; });
    std::sort(sorted.begin(), sorted.end());
    const double median = sorted.empty() ? 0 : sorted[sorted.size() / 2];
    return *std::find_if(std::begin(kUnits), std::end(kUnits) - 1, [&](const Unit& one) { return median >= one.ns; });
  }

  const std::string name_;
  std::vector<double> times_;
};

}  // namespace arbalest
