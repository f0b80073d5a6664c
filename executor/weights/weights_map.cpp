// SPDX-License-Identifier: Apache-2.0
#include "executor/weights/weights_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace arbalest {
namespace {

std::vector<std::string> words_of(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r";
  std::vector<std::string> words;
  line = line.substr(0, line.find('#'));
  for (size_t at = line.find_first_not_of(kSpace); at != line.npos; at = line.find_first_not_of(kSpace, at)) {
    const size_t end = std::min(line.find_first_of(kSpace, at), line.size());
    words.emplace_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

// Whether the name fits; appends what each * of the pattern stands for, as few characters as fit. What stands between
// two of them is looked for once, from the left: if any choice fits, the first place does.
bool match(std::string_view name, std::string_view pattern, std::vector<std::string_view>& stars) {
  size_t star = pattern.find('*');
  if (star == pattern.npos) return name == pattern;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  name.remove_prefix(star);
  while (true) {
    pattern.remove_prefix(star + 1);
    star = pattern.find('*');
    if (star == pattern.npos) break;
    const size_t at = name.find(pattern.substr(0, star));
    if (at == name.npos) return false;
    stars.push_back(name.substr(0, at));
    name.remove_prefix(at + star);
  }
  if (!name.ends_with(pattern)) return false;
  stars.push_back(name.substr(0, name.size() - pattern.size()));
  return true;
}

std::string substituted(const std::string& name, const std::vector<std::string_view>& stars) {
  std::string result;
  size_t star = 0;
  for (const char c : name) {
    c == '*' ? result += stars[star++] : result += c;
  }
  return result;
}

struct KerasVariable {
  std::string_view theirs, ours;
  bool transposed = false;
};

constexpr KerasVariable kKerasVariables[] = {{"kernel", "weight", true},
                                             {"bias", "bias"},
                                             {"gamma", "weight"},
                                             {"beta", "bias"},
                                             {"moving_mean", "running_mean"},
                                             {"moving_variance", "running_var"},
                                             {"embeddings", "weight"}};

// "conv1/kernel": the layer's name, and which variable of it; nothing if it is none of Keras'.
std::optional<std::pair<std::string_view, KerasVariable>> keras_variable(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash == name.npos) return std::nullopt;
  for (const KerasVariable& variable : kKerasVariables) {
    if (name.substr(slash + 1) == variable.theirs) return std::pair{name.substr(0, slash), variable};
  }
  return std::nullopt;
}

}  // namespace

WeightsMap::WeightsMap(std::string_view text, const std::string& file) {
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (words.empty()) continue;
    const auto fail = [&](const std::string& message) { throw GraphError(Position{file, number, 1}, message); };
    if (words.size() < 2 || words.size() > 3) {
      fail(
          fmt::format("found {} word{}, expected a pattern of names in the weights, the graph's name or '-', and "
                      "perhaps 'transposed' or 'keras'",
                      words.size(), words.size() == 1 ? "" : "s"));
    }
    const auto stars = [](const std::string& name) { return std::count(name.begin(), name.end(), '*'); };
    if (stars(words[1]) > stars(words[0])) {
      fail(fmt::format("'{}' has more * than '{}', which they stand for", words[1], words[0]));
    }
    const std::string word = words.size() == 3 ? words[2] : "";
    if (!word.empty() && word != "transposed" && word != "keras") {
      fail(fmt::format("found '{}', expected 'transposed', 'keras' or the end of the line", word));
    }
    rules_.push_back({words[0], words[1] == "-" ? "" : words[1], word == "transposed", word == "keras"});
  }
}

WeightsMap::Target WeightsMap::operator()(std::string_view name) const {
  const auto variable = keras_variable(name);
  for (const Rule& rule : rules_) {
    if (rule.keras && !variable) continue;
    std::vector<std::string_view> stars;
    if (!match(rule.keras ? variable->first : name, rule.pattern, stars)) continue;
    if (rule.name.empty()) return {};
    const std::string target = substituted(rule.name, stars);
    if (!rule.keras) return {target, rule.transposed};
    return {fmt::format("{}.{}", target, variable->second.ours), variable->second.transposed};
  }
  return {std::string(name), false};
}

}  // namespace arbalest
