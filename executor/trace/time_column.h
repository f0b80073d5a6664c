#pragma once
// Times as a reader of a report sees them.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace arbalest {

// With the unit that suits it: "1.57 ms".
inline std::string duration(double ns) {
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.1f} µs", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.2f} ms", ns / 1e6);
  return fmt::format("{:.2f} s", ns / 1e9);
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
