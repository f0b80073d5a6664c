// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/vary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/number.h"
#include "base/random.h"

namespace arbalest {
namespace {

// Few digits, since rates are read and typed again.
std::string text_of(double number) {
  constexpr double kWhole = 1e15;
  if (number == std::floor(number) && std::abs(number) < kWhole) return fmt::format("{}", int64_t(number));
  return fmt::format("{:.4g}", number);
}

// Blanks around a value are none of it.
std::string trimmed(std::string text) {
  text.erase(0, std::min(text.find_first_not_of(' '), text.size()));
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

class VaryReader {
 public:
  explicit VaryReader(const std::string& text) : text_(text) {}

  VariedSettings read() {
    const size_t equals = text_.find('=');
    if (equals == text_.npos || equals == 0 || equals + 1 == text_.size()) fail("NAME=VALUES, as in train.lr=0.05,0.1");
    varied_.names = parts(std::string_view(text_).substr(0, equals), '+');
    for (const std::string& name : varied_.names) {
      if (name.empty()) fail("a name on each side of '+'");
    }
    const std::string values = trimmed(text_.substr(equals + 1));
    if (values.empty()) fail("NAME=VALUES, as in train.lr=0.05,0.1");
    if (!read_function(values)) read_list(values);
    std::set<std::vector<std::string>> seen;
    for (const std::vector<std::string>& each : varied_.values) {
      std::vector<std::string> plain = each;  // 0.10 is 0.1
      for (std::string& value : plain) {
        if (const auto whole = read_number<int64_t>(value)) {
          value = std::to_string(*whole);
        } else if (const auto number = finite_number(value)) {
          value = fmt::format("{:.17g}", *number);
        }
      }
      if (!seen.insert(plain).second) fail(fmt::format("different values, found {} twice", fmt::join(each, "+")));
    }
    return varied_;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw GraphError(fmt::format("--vary '{}': expected {}", text_, expected));
  }

  std::vector<std::string> parts(std::string_view text, char between) const {
    auto found = split_settings(text, between);
    if (!found) fail("a ']' for each '[' that a value begins with, and a '\"' for each '\"'");
    for (std::string& part : *found) part = trimmed(part);
    return std::move(*found);
  }

  void read_list(std::string_view values) {
    const std::vector<std::string> list = parts(values, ',');
    if (list.size() == 1 && looks_like_range(list.front())) {
      fail("FROM..TO for whole numbers, linear(FROM,TO,COUNT) or log(FROM,TO,COUNT) for others");
    }
    for (const std::string& value : list) {
      if (value.empty()) fail("a value on each side of ','");
      if (read_range(value)) continue;
      std::vector<std::string> together = varied_.names.size() > 1 ? parts(value, '+') : std::vector{value};
      if (together.size() != varied_.names.size() || std::count(together.begin(), together.end(), "") > 0) {
        fail(fmt::format("{} values with '+' between them, found '{}'", varied_.names.size(), value));
      }
      for (size_t n = 0; n < together.size(); ++n) {
        std::string& text = together[n];
        const bool of_graph = varied_.names[n].find('.') != std::string::npos;  // which has literals in quotes
        const bool quoted = text.size() > 1 && text.front() == '"' && text.back() == '"';
        if (quoted && !of_graph) text = text.substr(1, text.size() - 2);
      }
      varied_.values.push_back(std::move(together));
    }
  }

  // "1-3" or "0.1:0.3", which others write for ranges.
  static bool looks_like_range(const std::string& value) {
    const size_t between = value.find_first_of("-:", 1);
    return !finite_number(value) && between != value.npos && finite_number(value.substr(0, between)) &&
           finite_number(value.substr(between + 1));
  }

  void add(const std::string& value) { varied_.values.push_back({value}); }
  void one_name() const {
    if (varied_.names.size() > 1) fail("lists, since several settings change together");
  }

  // "linear(A,B,N)" and the like.
  bool read_function(std::string_view values) {
    const size_t open = values.find('(');
    if (open == values.npos) return false;
    const std::string_view function = values.substr(0, open);
    if (function != "linear" && function != "log" && function != "uniform") return false;
    if (values.back() != ')') fail("a ')' at the end");
    one_name();
    std::vector<double> numbers;
    for (const std::string& part : parts(values.substr(open + 1, values.size() - open - 2), ',')) {
      const auto number = finite_number(part);
      if (!number) fail(fmt::format("numbers between the parentheses, found '{}'", part));
      numbers.push_back(*number);
    }
    const bool counted = numbers.size() == 3;
    if (function == "linear" ? !counted : function == "uniform" ? numbers.size() != 2 : numbers.size() - 2 > 1) {
      fail(function == "linear"    ? "linear(FROM,TO,COUNT)"
           : function == "uniform" ? "uniform(FROM,TO)"
                                   : "log(FROM,TO) or log(FROM,TO,COUNT)");
    }
    varied_.low = numbers[0];
    varied_.high = numbers[1];
    varied_.logarithmic = function == "log";
    if (varied_.logarithmic && (varied_.low <= 0 || varied_.high <= 0)) fail("positive numbers for log");
    if (varied_.low >= varied_.high) fail("the smaller number first");
    if (!counted) return true;
    const double count = numbers[2];
    if (count != std::floor(count) || count < 2 || count > double(kMostSweepTrials)) {
      fail(fmt::format("a whole number from 2 to {} for the count", kMostSweepTrials));
    }
    for (int64_t i = 0; i < int64_t(count); ++i) add(text_of(at(double(i) / (count - 1))));
    return true;
  }

  // "1..20"
  bool read_range(std::string_view values) {
    const size_t dots = values.find("..");
    if (dots == values.npos) return false;
    const auto from = finite_number(values.substr(0, dots)), to = finite_number(values.substr(dots + 2));
    if (!from || !to) return false;  // a path, perhaps
    one_name();
    if (*from != std::floor(*from) || *to != std::floor(*to) || *from > *to ||
        *to - *from >= double(kMostSweepTrials)) {
      fail(fmt::format("FROM..TO of whole numbers, the smaller first, at most {} of them", kMostSweepTrials));
    }
    for (auto number = int64_t(*from); number <= int64_t(*to); ++number) add(std::to_string(number));
    return true;
  }

  double at(double share) const { return value_at(varied_, share); }

 public:
  static double value_at(const VariedSettings& varied, double share) {
    if (!varied.logarithmic) return varied.low + share * (varied.high - varied.low);
    return std::exp(std::log(varied.low) + share * (std::log(varied.high) - std::log(varied.low)));
  }

 private:
  const std::string text_;
  VariedSettings varied_;
};

void check_names(const std::vector<VariedSettings>& varied, int64_t samples) {
  std::set<std::string> names;
  for (const VariedSettings& each : varied) {
    for (const std::string& name : each.names) {
      if (!names.insert(name).second) throw GraphError(fmt::format("--vary: '{}' is given twice", name));
    }
    if (each.drawn() && samples == 0) {
      throw GraphError(
          fmt::format("--vary {0}: numbers are to be drawn; expected --samples N, or a count, as in "
                      "{0}={1}({2:g},{3:g},5)",
                      each.names.front(), each.logarithmic ? "log" : "linear", each.low, each.high));
    }
  }
}

[[noreturn]] void fail_of_too_many() {
  throw GraphError(fmt::format("--vary: more than {} trials", kMostSweepTrials));
}

void add_values(TrialSettings& settings, const VariedSettings& from, size_t place) {
  for (size_t n = 0; n < from.names.size(); ++n) settings.emplace_back(from.names[n], from.values[place][n]);
}

// Every trial so far with every value.
std::vector<TrialSettings> multiplied(const std::vector<TrialSettings>& trials, const VariedSettings& varied) {
  if (trials.size() * varied.values.size() > size_t(kMostSweepTrials)) fail_of_too_many();
  std::vector<TrialSettings> all;
  for (const TrialSettings& trial : trials) {
    for (size_t place = 0; place < varied.values.size(); ++place) {
      all.push_back(trial);
      add_values(all.back(), varied, place);
    }
  }
  return all;
}

bool repeats(const VariedSettings& varied) {
  return std::all_of(varied.names.begin(), varied.names.end(), is_repetition);
}

// The combination of a draw, but for repetitions. Each setting is drawn by its name, so that one that is added leaves
// the others as they are, unless a combination was drawn twice.
TrialSettings drawn(const std::vector<VariedSettings>& varied, uint64_t seed, uint64_t sample, uint64_t attempt) {
  TrialSettings settings;
  for (const VariedSettings& each : varied) {
    if (repeats(each)) continue;
    const uint64_t key = random_key(seed, hash_name("sweep " + each.names.front()));
    const double share = uniform(philox(key, sample, attempt).word[0]);
    if (each.drawn()) {
      settings.emplace_back(each.names.front(), text_of(VaryReader::value_at(each, share)));
    } else {
      add_values(settings, each, std::min(size_t(share * double(each.values.size())), each.values.size() - 1));
    }
  }
  return settings;
}

// So many combinations, each another one: one that has come before is drawn anew.
std::vector<TrialSettings> samples_of(const std::vector<VariedSettings>& varied, int64_t samples, uint64_t seed) {
  constexpr uint64_t kMostAttempts = 1'000'000;  // draws of a sample; 100 times as many as there may be combinations
  if (samples > kMostSweepTrials) fail_of_too_many();
  double most = 1;
  bool repetitions = false;
  for (const VariedSettings& each : varied) {
    repetitions = repetitions || repeats(each);
    if (!repeats(each)) most *= each.drawn() ? double(kMostSweepTrials) : double(each.values.size());
  }
  const auto fail = [&](double found) {
    throw GraphError(
        fmt::format("--samples {}: --vary has {} different combination{}{}; expected no more samples than "
                    "combinations",
                    samples, found, found == 1 ? "" : "s", repetitions ? " besides seeds and folds" : ""));
  };
  if (double(samples) > most) fail(most);
  std::vector<TrialSettings> trials;
  std::set<TrialSettings> seen;
  for (uint64_t sample = 0; sample < uint64_t(samples); ++sample) {
    uint64_t attempt = 0;
    do {
      if (attempt == kMostAttempts) fail(double(seen.size()));
      trials.resize(sample);
      trials.push_back(drawn(varied, seed, sample, attempt++));
    } while (!seen.insert(trials.back()).second);
  }
  return trials;
}

}  // namespace

std::optional<std::vector<std::string>> split_settings(std::string_view text, char between) {
  constexpr std::string_view kBefore = "=,+;";  // a value, which blanks may precede
  std::vector<std::string> parts;
  size_t from = 0;
  int depth = 0;
  bool quoted = false, begins = true;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (depth == 0 && !quoted) {
      if (c == between) {
        parts.emplace_back(text.substr(from, i - from));
        from = i + 1;
      } else if (begins) {
        quoted = c == '"';
        depth = c == '[';
      }
      begins = kBefore.find(c) != kBefore.npos || (begins && c == ' ');
    } else if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      depth += int(c == '[') - int(c == ']');
    }
  }
  if (depth > 0 || quoted) return std::nullopt;
  parts.emplace_back(text.substr(from));
  return parts;
}

VariedSettings parse_varied(const std::string& text) {
  return VaryReader(text).read();
}

bool is_repetition(const std::string& name) {
  return name == "seed" || name == "fold";
}

std::vector<TrialSettings> combinations(const std::vector<VariedSettings>& varied, int64_t samples, uint64_t seed) {
  check_names(varied, samples);
  std::vector<TrialSettings> trials(1);
  if (samples > 0) trials = samples_of(varied, samples, seed);
  for (const VariedSettings& each : varied) {
    if (samples == 0 || repeats(each)) trials = multiplied(trials, each);
  }
  return trials;
}

std::vector<SettingNames> joined_names(const SettingNames& names, const std::vector<SettingNames>& together) {
  const auto has = [](const SettingNames& some, const std::string& name) {
    return std::find(some.begin(), some.end(), name) != some.end();
  };
  std::vector<SettingNames> joined;
  for (const std::string& name : names) {
    const auto with =
        std::find_if(together.begin(), together.end(), [&](const SettingNames& each) { return has(each, name); });
    const auto entry = std::find_if(joined.begin(), joined.end(), [&](const SettingNames& each) {
      return with != together.end() && has(*with, each.front());
    });
    (entry == joined.end() ? joined.emplace_back() : *entry).push_back(name);
  }
  return joined;
}

std::string to_string(const TrialSettings& settings, bool repetitions) {
  std::string text;
  for (const auto& [name, value] : settings) {
    if (!repetitions && is_repetition(name)) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  }
  return text;
}

}  // namespace arbalest
