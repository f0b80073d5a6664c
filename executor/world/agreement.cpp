// SPDX-License-Identifier: Apache-2.0
#include "executor/world/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/random.h"
#include "base/setting.h"
#include "executor/world/part.h"

namespace arbalest {

namespace {

uint64_t sum_of(const Texts& texts, size_t index) {
  return hash_name(texts.at(index));
}

// All ranks call it. Changes what `rank` and rank 0 have for a long fact to the first lines of it that differ.
void find_difference(Ranks& ranks, const Texts& texts, int rank, std::string& there, std::string& expected) {
  PartWriter sums;
  sums.number(int64_t(texts.size));
  for (size_t i = 0; i < texts.size; ++i) sums.number(sum_of(texts, i));
  const Ranks::Parts parts = ranks.exchange("sums of a fact", std::move(sums.bytes));
  PartReader first(parts[0]), other(parts[size_t(rank)]);
  const auto count_there = other.number<int64_t>(), count = first.number<int64_t>();
  int64_t at = 0;
  while (at < std::min(count, count_there) && first.number<uint64_t>() == other.number<uint64_t>()) ++at;
  const Ranks::Parts found =
      ranks.exchange("text of a fact", size_t(at) < texts.size ? texts.at(size_t(at)) : std::string());
  const std::vector<std::string> a = lines_of(found[0]), b = lines_of(found[size_t(rank)]);
  const auto line = size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const auto text = [&](const std::vector<std::string>& lines, int64_t all) {
    if (line < lines.size()) return printable(lines[line]);
    return line > 0 ? "nothing more after " + printable(lines[line - 1])
                    : fmt::format("nothing; it has {} in all", all);
  };
  expected = text(a, count);
  there = text(b, count_there);
}

}  // namespace

Fact long_fact(std::string name, Texts texts) {
  std::string sums;
  for (size_t i = 0; i < texts.size; ++i) sums += fmt::format("{:016x}", sum_of(texts, i));
  return {std::move(name), fmt::format("{:016x}", hash_name(sums)), std::move(texts)};
}

void check_alike(Ranks& ranks, const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) text += fmt::format("{}\t{}\n", fact.name, printable(fact.value));
  const Ranks::Parts parts = ranks.exchange("facts", text);
  const std::vector<std::string> first = lines_of(parts[0]);
  for (int rank = 1; rank < ranks.size(); ++rank) {
    if (parts[0] == parts[size_t(rank)]) continue;
    const std::vector<std::string> other = lines_of(parts[size_t(rank)]);
    const auto at = size_t(std::mismatch(first.begin(), first.end(), other.begin(), other.end()).first - first.begin());
    const auto name_of = [](const std::string& line) { return line.substr(0, line.find('\t')); };
    if (at == std::min(first.size(), other.size())) {
      const bool first_has_more = at < first.size();
      throw GraphError(fmt::format("{} differs from {}: {} alone states its {}; expected the same build on both",
                                   ranks.name(rank), ranks.name(0), ranks.name(first_has_more ? 0 : rank),
                                   name_of((first_has_more ? first : other)[at])));
    }
    const auto value = [](const std::string& line) { return line.substr(std::min(line.find('\t') + 1, line.size())); };
    const std::string name = name_of(other[at]);
    std::string there = value(other[at]), expected = value(first[at]);
    // A rank that comes back hears no more than the others exchanged before.
    const bool same_name = name == name_of(first[at]);
    if (same_name && at < facts.size() && facts[at].texts.at && !ranks.returns()) {
      find_difference(ranks, facts[at].texts, rank, there, expected);
    }
    const std::string way = ranks.returns() ? "a rank comes back by the command line that it was started with"
                                            : set_to(SettingKey::WorldSize, "1") + " lets each process work alone";
    throw GraphError(fmt::format("{} differs from {}: {}: {}; expected as on {}: {}; {}", ranks.name(rank),
                                 ranks.name(0), name, there, ranks.name(0), expected, way));
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
