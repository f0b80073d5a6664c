// SPDX-License-Identifier: Apache-2.0
#include "executor/world/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "executor/world/part.h"

namespace arbalest {

void check_alike(Ranks& ranks, const std::vector<std::pair<std::string, std::string>>& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += fmt::format("{}\t{}\n", name, printable(value));
  const Ranks::Parts parts = ranks.exchange("facts", text);
  for (int rank = 1; rank < ranks.size(); ++rank) {
    std::istringstream first(parts[0]), other(parts[size_t(rank)]);
    for (std::string a, b; std::getline(first, a) && std::getline(other, b);) {
      if (a == b) continue;
      const auto value = [](const std::string& line) {
        return line.substr(std::min(line.find('\t') + 1, line.size()));
      };
      throw GraphError(
          fmt::format("{} differs from {}: {}: {}; expected as on {}: {}; --world-size 1 lets each process work alone",
                      ranks.name(rank), ranks.name(0), b.substr(0, b.find('\t')), value(b), ranks.name(0), value(a)));
    }
    if (parts[0] != parts[size_t(rank)]) {
      throw GraphError(fmt::format("{} differs from {} in what it works on", ranks.name(rank), ranks.name(0)));
    }
  }
}

int64_t largest_of(Ranks* ranks, int64_t number) {
  if (!ranks) return number;
  PartWriter mine;
  mine.number(number);
  for (const std::string& part : ranks->exchange("largest number", std::move(mine.bytes))) {
    number = std::max(number, PartReader(part).number<int64_t>());
  }
  return number;
}

std::string first_of(Ranks* ranks, std::string text) {
  if (!ranks) return text;
  for (std::string& part : ranks->exchange("first text", std::move(text))) {
    if (!part.empty()) return std::move(part);
  }
  return "";
}

void on_all(Ranks* ranks, const std::function<void()>& step) {
  if (!ranks) return step();
  std::string error;
  try {
    step();
  } catch (const RunError& thrown) {
    error = fmt::format("{}: {}", ranks->name(ranks->rank()), thrown.what());
  }
  error = first_of(ranks, std::move(error));
  if (!error.empty()) throw AgreedError(error);
}

}  // namespace arbalest
