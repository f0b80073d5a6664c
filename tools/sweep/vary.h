// SPDX-License-Identifier: Apache-2.0
#pragma once
// The settings that the trials of a sweep differ in: what --vary says, and the trials that follow from it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace arbalest {

// Settings by name, in the order of the command line. A name with a dot is an attribute of the graph, NODE.ATTRIBUTE,
// any other an option of `arbalest run` without its dashes.
using TrialSettings = std::vector<std::pair<std::string, std::string>>;

// Settings that change together, and their values: lists, or a range that numbers are drawn from.
struct VariedSettings {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> values;  // by place, in the order of names; empty: drawn
  double low = 0, high = 0;                      // of what is drawn
  bool logarithmic = false;

  bool drawn() const { return values.empty(); }
};

// Reads
//   NAME=A,B,C                    a list
//   NAME=1..20                    whole numbers, also in a list: 1..3,7
//   NAME=linear(A,B,N), log(A,B,N)  N numbers from A to B, at equal distances or in equal proportions
//   NAME=uniform(A,B), log(A,B)   numbers to be drawn
//   NAME+NAME=A+B,C+D             settings that change together
// A value that begins with '[' or '"' goes on to the bracket or quote that closes it: NAME=[10,20],[15,25]. Blanks may
// stand around values.
// Throws GraphError that says what was found and what was expected.
VariedSettings parse_varied(const std::string& text);

// The parts of a text between the characters that no brackets or quotes of a value enclose; nothing if one is left
// open.
std::optional<std::vector<std::string>> split_settings(std::string_view text, char between);

// The combinations. Without `samples` every list is multiplied with all others. Otherwise so many different
// combinations are drawn, the same ones for the same seed; lists named "seed" or "fold" are still multiplied with each.
// Throws GraphError if a setting is given twice, if numbers are to be drawn and `samples` is 0, if there are fewer than
// `samples`, or for more than kMostSweepTrials.
std::vector<TrialSettings> combinations(const std::vector<VariedSettings>& varied, int64_t samples, uint64_t seed);

inline constexpr int64_t kMostSweepTrials = 10'000;

// Names whose values repeat a combination rather than make another: trials that differ in these alone are one group.
bool is_repetition(const std::string& name);

// The names in their order, each with those that change together with it: [[a], [b, c]].
using SettingNames = std::vector<std::string>;
std::vector<SettingNames> joined_names(const SettingNames& names, const std::vector<SettingNames>& together);

// "train.lr 0.1, seed 2"; "" for no settings. `repetitions`: with those.
std::string to_string(const TrialSettings& settings, bool repetitions = true);

}  // namespace arbalest
