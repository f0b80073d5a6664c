// SPDX-License-Identifier: Apache-2.0
#include "executor/world/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "executor/world/part.h"

namespace arbalest {

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
