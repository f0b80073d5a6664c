// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/answer/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "tools/experiment/answer/summary.h"

namespace arbalest {
namespace {

// One quantity as the repetitions of a cell measured it.
struct Quantity {
  std::string cell;    // its name
  bool lower = false;  // whether less is better
  std::vector<double> values;
};

// By the cell's id and the quantity's name; `order`: as the file has them.
struct Quantities {
  using Key = std::pair<std::string, std::string>;
  std::map<Key, Quantity> all;
  std::vector<Key> order;
  std::map<std::pair<std::string, Measure>, const Identity*> latest;  // by cell and measure, of its last line
};

Quantities quantities_of(const std::vector<TrialResult>& trials, const std::vector<double>& targets) {
  Quantities found;
  for (const TrialResult& trial : trials) found.latest[{trial.cell, trial.measure}] = &trial.identity;
  for (const TrialResult& trial : trials) {
    if (!trial.error.empty() || !(trial.identity == *found.latest.at({trial.cell, trial.measure}))) continue;
    const auto add = [&](const std::string& what, double value, bool lower) {
      const auto [place, fresh] = found.all.try_emplace({trial.cell, what});
      if (fresh) found.order.push_back(place->first);
      Quantity& quantity = place->second;
      quantity.cell = trial.name;
      quantity.lower = lower;
      quantity.values.push_back(value);
    };
    if (trial.measure == Measure::Throughput) {
      add("images/s", trial.images_per_second, false);
    } else {
      add("training, s", trial.seconds, true);
      for (const double target : targets) {
        add(fmt::format("s to {:g}", target), time_to(trial, target, trial.lower), true);
      }
      add("final", trial.curve.back().value, trial.lower);
    }
  }
  return found;
}

// Names what differs between the two sides of a cell apart from the build, which is what is compared.
void note_differences(const Quantities& old, const Quantities& now, std::vector<std::string>& notes) {
  std::map<std::string, std::set<std::string>> cells_by_part;
  for (const auto& [which, identity] : old.latest) {
    const auto other = now.latest.find(which);
    if (other == now.latest.end()) continue;
    for (const std::string& part : differences(*identity, *other->second)) {
      if (part != "the build") cells_by_part[part].insert(which.first);
    }
  }
  for (const auto& [part, cells] : cells_by_part) {
    notes.push_back(fmt::format("{} of {} cell{} {} not the same before and after", part, cells.size(),
                                cells.size() == 1 ? "" : "s", part == "the graph" ? "is" : "are"));
  }
}

}  // namespace

ResultComparison compare(const std::vector<TrialResult>& before, const std::vector<TrialResult>& after,
                         double threshold, const std::vector<double>& targets) {
  ResultComparison found;
  found.table = {"Before and after",
                 {{"cell", false},
                  {"quantity", false},
                  {"before", true, true},
                  {"after", true, true},
                  {"ratio", true, true},
                  {"verdict", false}},
                 {},
                 {}};
  const Quantities old = quantities_of(before, targets), now = quantities_of(after, targets);
  for (const Quantities::Key& which : old.order) {
    const Quantity& quantity = old.all.at(which);
    const Estimate was = estimate(quantity.values);
    std::vector<TableValue> row = {{quantity.cell}, {which.second}, {shown(was), was.median, was.interval}};
    const auto other = now.all.find(which);
    if (other == now.all.end()) {
      ++found.missing;
      ++found.judged;
      row.insert(row.end(), {{"-"}, {"-"}, {"missing"}});
      found.table.rows.push_back(std::move(row));
      continue;
    }
    const std::vector<double>& values = other->second.values;
    const Estimate is = estimate(values);
    const auto change = quantity.lower ? ratio(quantity.values, values) : ratio(values, quantity.values);
    row.push_back({shown(is), is.median, is.interval});
    row.push_back(change ? TableValue{shown(*change), change->median, change->interval} : TableValue{"-"});
    const Difference clear = change ? difference(*change) : Difference::Unclear;
    const bool lost = std::isfinite(was.median) && !std::isfinite(is.median);  // a target is no longer met
    const bool worse = lost || (clear == Difference::Below && change->interval->high < 1 - threshold);
    const size_t fewest = std::min(was.count, is.count);
    const bool few = fewest < kFewest && !worse;
    found.worse += worse ? 1 : 0;
    found.judged += few ? 0 : 1;
    row.push_back({worse                            ? "worse"
                   : few                            ? fmt::format("unclear: {} of {} repetitions", fewest, kFewest)
                   : clear == Difference::Above     ? "better"
                   : clear == Difference::Unclear   ? "unclear"
                   : change->median < 1 - threshold ? "worse, not surely beyond the threshold"
                                                    : "worse, within the threshold"});
    found.table.rows.push_back(std::move(row));
  }
  size_t added = 0;
  for (const Quantities::Key& which : now.order) added += old.all.contains(which) ? 0 : 1;
  if (added > 0) found.table.notes.push_back(fmt::format("{} quantities have results after the change alone", added));
  if (const size_t few = found.table.rows.size() - found.judged; few > 0) {
    found.table.notes.push_back(
        fmt::format("{} of {} rows cannot be judged: an interval takes {} repetitions or more of both files, by "
                    "[throughput] repetitions or [accuracy] seeds",
                    few, found.table.rows.size(), kFewest));
  }
  note_differences(old, now, found.table.notes);
  found.table.notes.push_back(fmt::format("{} surely worse by more than {:g} %, {} missing; a ratio above 1 is better",
                                          found.worse, 100 * threshold, found.missing));
  return found;
}

}  // namespace arbalest
