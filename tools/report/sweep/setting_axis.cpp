// SPDX-License-Identifier: Apache-2.0
#include "tools/report/sweep/setting_axis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/number.h"

namespace arbalest {
namespace {

constexpr size_t kRanges = 6;

// Names in the order of their first trials.
void place_names(PlottedSetting& axis, const Leaderboard& board) {
  std::map<std::string, int> first;
  for (const TrialGroup& group : board.groups) {
    const auto value = axis.value_of(group);
    if (!value) continue;
    const auto [found, added] = first.emplace(*value, group.trials.front());
    found->second = std::min(found->second, group.trials.front());
  }
  std::map<int, std::vector<std::string>> order;
  for (const auto& [value, trial] : first) order[trial].push_back(value);
  std::map<std::string, size_t> place;
  for (const auto& [trial, values] : order) {
    for (const std::string& value : values) {
      place[value] = axis.steps.size();
      axis.steps.push_back({value, double(axis.steps.size())});
    }
  }
  for (const TrialGroup& group : board.groups) {
    const auto value = axis.value_of(group);
    axis.step.push_back(value ? std::optional(place[*value]) : std::nullopt);
    axis.at.push_back(value ? std::optional(double(place[*value])) : std::nullopt);
  }
}

// Whether the numbers are spread more evenly over a logarithmic scale: the widest gap between neighbours is a smaller
// share of it.
bool is_logarithmic(const std::map<double, std::string>& numbers) {
  const double least = numbers.begin()->first, most = numbers.rbegin()->first;
  if (least <= 0 || most < 10 * least) return false;
  double plain = 0, of_logarithms = 0;
  for (auto one = numbers.begin(), next = std::next(one); next != numbers.end(); ++one, ++next) {
    plain = std::max(plain, (next->first - one->first) / (most - least));
    of_logarithms = std::max(of_logarithms, std::log(next->first / one->first) / std::log(most / least));
  }
  return of_logarithms < plain || most > 100 * least;
}

// The numbers, each by itself or in ranges of one width.
void place_numbers(PlottedSetting& axis, const std::map<double, std::string>& numbers) {
  const double least = numbers.begin()->first, most = numbers.rbegin()->first;
  const bool logarithmic = is_logarithmic(numbers);
  axis.scale = logarithmic ? PlottedSetting::Scale::Log : PlottedSetting::Scale::Linear;
  if (numbers.size() <= kMostSteps) {
    for (const auto& [number, text] : numbers) axis.steps.push_back({text, number});
    for (const auto& at : axis.at) {
      axis.step.push_back(at ? std::optional(size_t(std::distance(numbers.begin(), numbers.find(*at)))) : std::nullopt);
    }
    return;
  }
  const auto share = [&](double number) {
    return logarithmic ? std::log(number / least) / std::log(most / least) : (number - least) / (most - least);
  };
  const auto number_at = [&](double part) {
    return logarithmic ? least * std::pow(most / least, part) : least + (most - least) * part;
  };
  for (size_t i = 0; i < kRanges; ++i) {
    const double from = double(i) / kRanges, to = double(i + 1) / kRanges;
    axis.steps.push_back({fmt::format("{:.3g} to {:.3g}", number_at(from), number_at(to)), number_at((from + to) / 2)});
  }
  for (const auto& at : axis.at) {
    axis.step.push_back(at ? std::optional(std::min(size_t(share(*at) * kRanges), kRanges - 1)) : std::nullopt);
  }
}

PlottedSetting axis_of(const SettingNames& names, const Leaderboard& board) {
  PlottedSetting axis;
  axis.names = names;
  std::map<double, std::string> numbers;
  for (const TrialGroup& group : board.groups) {
    const auto value = axis.value_of(group);
    const std::optional<double> number = value ? finite_number(*value) : std::nullopt;
    if (value && !number) {
      axis.at.clear();
      place_names(axis, board);
      return axis;
    }
    if (number) numbers.emplace(*number, *value);
    axis.at.push_back(number);
  }
  place_numbers(axis, numbers);
  return axis;
}

}  // namespace

std::string PlottedSetting::name() const {
  return fmt::format("{}", fmt::join(names, "+"));
}

std::optional<std::string> PlottedSetting::value_of(const TrialGroup& group) const {
  std::vector<std::string> values;
  for (const auto& [name, value] : group.settings) {
    if (std::find(names.begin(), names.end(), name) != names.end()) values.push_back(value);
  }
  return values.empty() ? std::nullopt : std::optional(fmt::format("{}", fmt::join(values, "+")));
}

std::vector<PlottedSetting> setting_axes(const Leaderboard& board, const std::vector<SettingNames>& together) {
  std::vector<std::string> names;
  std::map<std::string, std::set<std::string>> values;
  std::map<std::string, size_t> groups;
  for (const TrialGroup& group : board.groups) {
    for (const auto& [name, value] : group.settings) {
      if (!values.contains(name)) names.push_back(name);
      values[name].insert(value);
      ++groups[name];
    }
  }
  std::erase_if(
      names, [&](const std::string& name) { return values[name].size() == 1 && groups[name] == board.groups.size(); });
  std::vector<PlottedSetting> axes;
  for (const SettingNames& each : joined_names(names, together)) axes.push_back(axis_of(each, board));
  return axes;
}

}  // namespace arbalest
