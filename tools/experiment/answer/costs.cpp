// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/answer/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "tools/experiment/answer/statistics.h"

namespace arbalest {
namespace {

std::string way_name(const CellCost& way) {
  return way.summary->cell->name + (way.machine.spot ? " on spot" : "");
}

// The last of the file's targets that a cell met in half of its runs; none if no cell met any.
std::optional<size_t> target_to_price(const BenchFile& file, const std::vector<CellSummary>& all) {
  for (size_t t = file.accuracy ? file.accuracy->targets.size() : 0; t-- > 0;) {
    for (const CellSummary& each : all) {
      if (!each.times[t].empty() && std::isfinite(median_of(each.times[t]))) return t;
    }
  }
  return std::nullopt;
}

// All ways of all cells that met the target in half of their runs; those of a cell stand together.
std::vector<CellCost> costs_of(const BenchPrice& price, const std::vector<CellSummary>& all, size_t target) {
  std::vector<CellCost> costs;
  for (const CellSummary& summary : all) {
    const double seconds = summary.times[target].empty() ? INFINITY : median_of(summary.times[target]);
    if (!std::isfinite(seconds)) continue;
    for (const CellCost& way : ways_of(price, summary, seconds)) costs.push_back(way);
  }
  return costs;
}

// Whether no other way is both faster and cheaper.
bool on_front(const CellCost& cost, const std::vector<CellCost>& all) {
  return std::none_of(all.begin(), all.end(), [&](const CellCost& other) {
    return other.seconds <= cost.seconds && other.money <= cost.money &&
           (other.seconds < cost.seconds || other.money < cost.money);
  });
}

// Runs that did not get to the target, and by which of its ways no other is both faster and cheaper than the cell.
std::string note_of_costs(const std::vector<CellCost>& own, const std::vector<CellCost>& all, size_t target) {
  const std::vector<double>& times = own.front().summary->times[target];
  const auto reached = std::count_if(times.begin(), times.end(), [](double time) { return std::isfinite(time); });
  std::string note = reached == std::ssize(times) ? "" : fmt::format("{} of {} runs got there", reached, times.size());
  for (const CellCost& way : own) {
    if (!on_front(way, all)) continue;
    note += fmt::format("{}{}no other is both faster and cheaper", note.empty() ? "" : "; ",
                        way.machine.spot ? "on spot " : "");
  }
  return note;
}

// The cell that gets to the target for the least money, if each takes its cheapest way. Says whether it is known to
// cost less than all others; if not, the first of which it is not known.
std::string cheapest(std::vector<CellCost> costs, size_t target, const std::string& currency) {
  std::stable_sort(costs.begin(), costs.end(),
                   [](const CellCost& one, const CellCost& two) { return one.money < two.money; });
  std::set<const CellSummary*> seen;
  std::erase_if(costs, [&](const CellCost& cost) { return !seen.insert(cost.summary).second; });
  if (costs.size() < 2) return "";
  const auto money = [&](const CellCost& cost) {
    return scaled(cost.summary->times[target], cost.machine.per_hour * cost.machine.stretch / 3600);
  };
  const auto share_of = [&](const CellCost& other) { return ratio(money(costs[0]), money(other)); };
  const auto unclear = std::find_if(costs.begin() + 1, costs.end(), [&](const CellCost& other) {
    const std::optional<Estimate> share = share_of(other);
    return !share || difference(*share) != Difference::Below;
  });
  const bool sure = unclear == costs.end();
  const CellCost& other = sure ? costs[1] : *unclear;
  const std::optional<Estimate> share = share_of(other);
  return fmt::format("cheapest: {} for {} {}; {}{}{}", way_name(costs[0]), shown(costs[0].money), currency,
                     sure                           ? "less than the next, "
                     : unclear == costs.begin() + 1 ? "not known to be less than the next, "
                                                    : "not known to be less than ",
                     way_name(other), share ? fmt::format(": {} times", shown(*share)) : "");
}

// The columns of a cell's ways to the target, and their note.
void add_ways(const BenchPrice& price, const CellSummary& summary, const std::vector<CellCost>& costs, size_t target,
              std::vector<TableValue>& row) {
  std::vector<CellCost> own;
  std::copy_if(costs.begin(), costs.end(), std::back_inserter(own),
               [&](const CellCost& each) { return each.summary == &summary; });
  for (const CellCost& way : own) {
    row.push_back({shown(way.seconds), way.seconds});
    row.push_back(value_of(estimate(scaled(summary.times[target], way.machine.per_hour * way.machine.stretch / 3600))));
  }
  if (!own.empty()) {
    row.push_back({note_of_costs(own, costs, target)});
    return;
  }
  row.resize(row.size() + (price.spot_per_hour.empty() ? 2 : 4), TableValue{"-"});
  row.push_back({!summary.fault.empty()          ? summary.fault
                 : summary.times[target].empty() ? "not measured yet"
                                                 : "not reached"});
}

}  // namespace

std::vector<MachinePrice> machine_prices(const BenchPrice& price, const BenchCell& cell) {
  std::vector<MachinePrice> prices = {{false, number_of(price.per_hour, cell.settings, price.where), 1}};
  if (price.spot_per_hour.empty()) return prices;
  const double lost = price.interruptions_per_hour * price.lost_seconds / 3600;  // of each hour of the clock
  prices.push_back({true, number_of(price.spot_per_hour, cell.settings, price.where), 1 / (1 - lost)});
  return prices;
}

std::vector<CellCost> ways_of(const BenchPrice& price, const CellSummary& summary, double seconds) {
  std::vector<CellCost> ways;
  for (const MachinePrice& machine : machine_prices(price, *summary.cell)) {
    const double takes = seconds * machine.stretch;
    ways.push_back({&summary, machine, takes, machine.per_hour * takes / 3600});
  }
  return ways;
}

std::string cheapest_in_time(const BenchPrice& price, const std::vector<CellCost>& ways) {
  const CellCost* found = nullptr;
  for (const CellCost& way : ways) {
    if (way.seconds <= price.by_seconds && (!found || way.money < found->money)) found = &way;
  }
  const std::string time = shown_time(price.by_seconds);
  return found
             ? fmt::format("cheapest within {}: {}, {} {}", time, way_name(*found), shown(found->money), price.currency)
             : fmt::format("no cell gets there within {}", time);
}

ResultTable cost_table(const BenchFile& file, const std::vector<CellSummary>& all) {
  const BenchPrice& price = *file.price;
  const std::string& money = price.currency;
  ResultTable table{"Cost", {{"cell", false}, {money + " an hour"}}, {}, {}};
  const bool spot = !price.spot_per_hour.empty();
  const std::optional<size_t> priced = target_to_price(file, all);
  const std::vector<CellCost> costs = priced ? costs_of(price, all, *priced) : std::vector<CellCost>();
  if (spot) table.columns.push_back({"spot, with what is lost"});
  if (file.throughput) table.columns.push_back({"images per " + money});
  if (!costs.empty()) {
    const double target = file.accuracy->targets[*priced];
    for (const char* machine : {"", " on spot"}) {
      if (*machine && !spot) continue;
      table.columns.push_back({fmt::format("s to {:g}{}", target, machine)});
      table.columns.push_back({fmt::format("{} to {:g}{}", money, target, machine), true, true});
    }
    table.columns.push_back({"note", false});
  }
  for (const CellSummary& summary : all) {
    std::vector<TableValue> row = {{summary.cell->name}};
    const std::vector<MachinePrice> prices = machine_prices(price, *summary.cell);
    for (const MachinePrice& machine : prices) {
      const double per_hour = machine.per_hour * machine.stretch;
      row.push_back({shown(per_hour), per_hour});
    }
    if (file.throughput) {
      const double images = summary.rates.empty() ? 0 : median_of(summary.rates) * 3600 / prices.front().per_hour;
      row.push_back(summary.rates.empty() ? TableValue{"-"} : TableValue{shown(images), images});
    }
    if (!costs.empty()) add_ways(price, summary, costs, *priced, row);
    table.rows.push_back(std::move(row));
  }
  const bool has_targets = file.accuracy && !file.accuracy->targets.empty();
  const bool any_run =
      std::any_of(all.begin(), all.end(), [](const CellSummary& each) { return !each.finals.empty(); });
  if (std::string best = cheapest(costs, priced.value_or(0), money); !best.empty()) {
    table.notes.push_back(std::move(best));
  }
  if (has_targets && any_run && (!priced || *priced + 1 < file.accuracy->targets.size())) {
    table.notes.push_back(fmt::format("no cell gets to {:g}", file.accuracy->targets[priced ? *priced + 1 : 0]));
  }
  if (!costs.empty()) table.notes.push_back("times and prices to a target are medians of the runs");
  if (price.by_seconds > 0 && has_targets) table.notes.push_back(cheapest_in_time(price, costs));
  table.notes.push_back(fmt::format("prices of {}, {}", price.source, price.date));
  return table;
}

}  // namespace arbalest
