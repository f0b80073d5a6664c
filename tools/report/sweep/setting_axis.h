// SPDX-License-Identifier: Apache-2.0
#pragma once
// A setting of a sweep as the axis of a plot: its values in order, or ranges of them if they are many.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/sweep/leaderboard.h"

namespace arbalest {

struct PlottedSetting {
  enum class Scale { Linear, Log, Names };

  // A value, or a range of values.
  struct Step {
    std::string text;
    double at = 0;  // on the axis; the middle of a range; of names the place, from 0 on
  };

  SettingNames names;  // of settings that change together
  Scale scale = Scale::Names;
  std::vector<Step> steps;
  // By group of the leaderboard; none: the group has no such setting.
  std::vector<std::optional<double>> at;
  std::vector<std::optional<size_t>> step;

  std::string name() const;                                            // "a+b"
  std::optional<std::string> value_of(const TrialGroup& group) const;  // "1+2"; none: the group has no such setting
};

// Numbers that are more than these become ranges.
inline constexpr size_t kMostSteps = 20;

// The settings that differ between groups, those that change together as one. A scale is logarithmic if all values are
// above 0 and the greatest is more than a hundred times the least, or ten times, if that spreads them more evenly.
std::vector<PlottedSetting> setting_axes(const Leaderboard& board, const std::vector<SettingNames>& together = {});

}  // namespace arbalest
