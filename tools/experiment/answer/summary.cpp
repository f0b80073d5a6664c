// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/answer/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "executor/limit/recomputation.h"
#include "tools/experiment/answer/costs.h"

namespace arbalest {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The first validation that met the target, or nullptr.
const CurvePoint* first_met(const TrialResult& run, double target, bool lower) {
  const auto met = std::find_if(run.curve.begin(), run.curve.end(), [&](const CurvePoint& point) {
    return lower ? point.value <= target : point.value >= target;
  });
  return met == run.curve.end() ? nullptr : &*met;
}

void add(const BenchFile& file, const TrialResult& result, CellSummary& summary) {
  if (!result.error.empty()) {
    summary.fault = result.error;
    if (result.measure != Measure::Accuracy || result.too_large) return;
    ++summary.failed;
    for (std::vector<double>& times : summary.times) times.push_back(kNever);
    for (std::vector<double>& epochs : summary.epochs) epochs.push_back(kNever);
    return;
  }
  summary.peak_bytes = std::max(summary.peak_bytes, result.peak_bytes);
  summary.taken_bytes = std::max(summary.taken_bytes, result.taken_bytes);
  std::vector<double>& late = result.measure == Measure::Throughput ? summary.late : summary.run_late;
  if (result.late_batches >= 0) late.push_back(result.late_batches);
  if (result.gpu_busy >= 0) summary.busy.push_back(result.gpu_busy);
  if (result.measure == Measure::Throughput) {
    summary.rates.push_back(result.images_per_second);
    if (result.joules_per_image > 0) summary.joules_per_image.push_back(result.joules_per_image);
    summary.unsettled += result.settled ? 0 : 1;
    return;
  }
  if (result.images_per_second > 0) summary.run_rates.push_back(result.images_per_second);
  if (result.setup_seconds > 0) summary.setups.push_back(result.setup_seconds);
  if (result.command_seconds > 0) summary.commands.push_back(result.command_seconds);
  if (result.joules > 0) summary.joules.push_back(result.joules);
  summary.finals.push_back(result.curve.back().value);
  for (size_t t = 0; t < file.accuracy->targets.size(); ++t) {
    summary.times[t].push_back(time_to(result, file.accuracy->targets[t], file.accuracy->lower));
    if (!summary.epochs.empty()) {
      summary.epochs[t].push_back(epochs_to(result, file.accuracy->targets[t], file.accuracy->lower));
    }
  }
}

// The place on the axes of the cell that this one is compared with.
std::vector<size_t> baseline_place(const BenchFile& file, const BenchCell& cell) {
  std::vector<size_t> place = cell.place;
  if (!file.comparison) return std::vector<size_t>(place.size(), 0);
  for (size_t a = 0; a < file.axes.size(); ++a) {
    const SettingAxis& axis = file.axes[a];
    const auto name = std::find(axis.names.begin(), axis.names.end(), file.comparison->by);
    if (name == axis.names.end()) continue;
    const size_t column = size_t(name - axis.names.begin());
    // With lists that go together several places may have the value; the first that does is meant.
    for (size_t p = 0; p < axis.values.size(); ++p) {
      if (axis.values[p][column] != file.comparison->against) continue;
      place[a] = p;
      break;
    }
  }
  return place;
}

const CellSummary* baseline_of(const BenchFile& file, const CellSummary& summary, const std::vector<CellSummary>& all) {
  if (!file.comparison) return &summary == &all.front() ? nullptr : &all.front();
  const std::vector<size_t> place = baseline_place(file, *summary.cell);
  const bool by_peer = file.comparison->by == "peer";
  const std::string& against = file.comparison->against;
  const std::string peer = !by_peer ? summary.cell->peer : against == "arbalest" ? "" : against;
  for (const CellSummary& other : all) {
    if (other.cell->place == place && other.cell->peer == peer) return &other == &summary ? nullptr : &other;
  }
  return nullptr;
}

// The ratio with what it means: "1.23 (1.18–1.29) faster".
TableValue comparison(const std::vector<double>& over, const std::vector<double>& under, const char* above,
                      const char* below) {
  if (over.empty() || under.empty()) return {"-"};
  const std::optional<Estimate> found = ratio(over, under);
  if (!found) return {"-"};
  const Difference clear = difference(*found);
  return value_of(*found, clear == Difference::Above   ? fmt::format(" {}", above)
                          : clear == Difference::Below ? fmt::format(" {}", below)
                                                       : " unclear");
}

std::string against(const BenchFile& file, const std::vector<CellSummary>& all) {
  if (!file.comparison) return all.front().cell->name;
  return file.comparison->by + " " + file.comparison->against;
}

bool is_compared(const std::vector<CellSummary>& all) {
  return std::any_of(all.begin(), all.end(), [](const CellSummary& each) { return each.baseline != nullptr; });
}

bool counts_devices(const BenchFile& file) {
  return file.comparison && (file.comparison->by == "devices" || file.comparison->by == "hosts");
}

// How many times as many devices a cell has as its baseline.
double times_devices(const CellSummary& summary) {
  const auto count = [](const BenchCell& cell) { return device_count(cell.settings) * hosts_in(cell.settings); };
  return double(count(*summary.cell)) / count(*summary.baseline->cell);
}

// The kind of a cell's scaling: strong if a step has as many images as the baseline's, weak if a learner has.
std::string kind_of_scaling(const CellSummary& summary) {
  const Settings &own = summary.cell->settings, &base = summary.baseline->cell->settings;
  const int64_t images = images_per_step(own), images_before = images_per_step(base);
  const bool strong = images > 0 && images == images_before;
  const bool weak = images * learner_count(base) == images_before * learner_count(own);
  return strong == weak ? "efficiency" : strong ? "strong efficiency" : "weak efficiency";
}

// The kinds of scaling of all cells, in their order. Each is a column, since they cannot be compared.
std::vector<std::string> kinds_of_scaling(const BenchFile& file, const std::vector<CellSummary>& all) {
  std::vector<std::string> kinds;
  for (const CellSummary& each : all) {
    if (!counts_devices(file) || !each.baseline) continue;
    const std::string kind = kind_of_scaling(each);
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

TableValue efficiency(const CellSummary& summary, const std::string& kind) {
  if (!summary.baseline || summary.rates.empty() || summary.baseline->rates.empty()) return {"-"};
  if (kind_of_scaling(summary) != kind) return {"-"};
  const std::optional<Estimate> found =
      ratio(scaled(summary.rates, 100 / times_devices(summary)), summary.baseline->rates);
  return found ? value_of(*found, " %") : TableValue{"-"};
}

// Shares in percent: "1.2 (0.0–3.4) %"; "-": there are none.
TableValue share_value(const std::vector<double>& shares) {
  if (shares.empty()) return {"-"};
  const Estimate found = estimate(scaled(shares, 100));
  const std::string bounds =
      found.interval ? fmt::format(" ({:.1f}–{:.1f})", found.interval->low, found.interval->high) : "";
  return {fmt::format("{:.1f}{} %", found.median, bounds), found.median, found.interval};
}

// Whether one of the cells has such measurements.
bool has(const std::vector<CellSummary>& all, std::vector<double> CellSummary::*values) {
  return std::any_of(all.begin(), all.end(), [&](const CellSummary& each) { return !(each.*values).empty(); });
}

std::vector<TableValue> faulty_row(const ResultTable& table, const CellSummary& summary) {
  std::vector<TableValue> row(table.columns.size(), TableValue{"-"});
  row[0].text = summary.cell->name;
  row.back().text = summary.fault.empty() ? "not measured yet" : summary.fault;
  return row;
}

std::string outliers(const Estimate& estimate) {
  return estimate.outliers == 0 ? ""
                                : fmt::format("{} outlier{}", estimate.outliers, estimate.outliers == 1 ? "" : "s");
}

// The fastest cell, and whether it is known to be faster than the next.
std::string fastest(const std::vector<CellSummary>& all) {
  std::vector<const CellSummary*> order;
  for (const CellSummary& each : all) {
    if (!each.rates.empty()) order.push_back(&each);
  }
  if (order.size() < 2) return "";
  std::stable_sort(order.begin(), order.end(), [](const CellSummary* a, const CellSummary* b) {
    return median_of(a->rates) > median_of(b->rates);
  });
  const std::optional<Estimate> lead = ratio(order[0]->rates, order[1]->rates);
  const bool sure = lead && difference(*lead) == Difference::Above;
  return fmt::format("fastest: {}; {} the next, {}{}", order[0]->cell->name,
                     sure ? "faster than" : "not known to be faster than", order[1]->cell->name,
                     lead ? fmt::format(": {} times", shown(*lead)) : "");
}

bool knows_taken(const std::vector<CellSummary>& all) {
  return std::any_of(all.begin(), all.end(), [](const CellSummary& each) { return each.taken_bytes >= 0; });
}

void add_memory_columns(const std::vector<CellSummary>& all, ResultTable& table) {
  table.columns.push_back({"planned memory"});
  if (knows_taken(all)) table.columns.push_back({"taken of the GPU"});
}

// Adds the memory of the cell's device, for these columns.
void add_memory(const CellSummary& summary, const std::vector<CellSummary>& all, std::vector<TableValue>& row) {
  const auto size = [](int64_t bytes) {
    return bytes > 0 ? TableValue{size_text(bytes), double(bytes)} : TableValue{"-"};
  };
  row.push_back(size(summary.peak_bytes));
  if (knows_taken(all)) row.push_back(size(summary.taken_bytes));
}

ResultTable throughput_table(const BenchFile& file, const std::vector<CellSummary>& all) {
  ResultTable table{"Throughput", {{"cell", false}, {"images/s", true, true}}, {}, {}};
  const bool compared = is_compared(all);
  const std::vector<std::string> kinds = kinds_of_scaling(file, all);
  if (compared) table.columns.push_back({"against " + against(file, all), true, true});
  for (const std::string& kind : kinds) table.columns.push_back({kind, true, true});
  const bool energy = has(all, &CellSummary::joules_per_image), late = has(all, &CellSummary::late),
             busy = has(all, &CellSummary::busy);
  if (energy) table.columns.push_back({"J an image", true, true});
  if (late) table.columns.push_back({"late batches", true, true});
  if (busy) table.columns.push_back({"GPU busy", true, true});
  add_memory_columns(all, table);
  table.columns.insert(table.columns.end(), {{"repetitions"}, {"note", false}});
  for (const CellSummary& summary : all) {
    if (summary.rates.empty()) {
      table.rows.push_back(faulty_row(table, summary));
      continue;
    }
    const Estimate rate = estimate(summary.rates);
    std::vector<TableValue> row = {{summary.cell->name}, value_of(rate)};
    if (compared) {
      row.push_back(summary.baseline ? comparison(summary.rates, summary.baseline->rates, "faster", "slower")
                                     : TableValue{"-"});
    }
    for (const std::string& kind : kinds) row.push_back(efficiency(summary, kind));
    if (energy) {
      row.push_back(summary.joules_per_image.empty() ? TableValue{"-"} : value_of(estimate(summary.joules_per_image)));
    }
    if (late) row.push_back(share_value(summary.late));
    if (busy) row.push_back(share_value(summary.busy));
    add_memory(summary, all, row);
    row.push_back({std::to_string(rate.count), double(rate.count)});
    row.push_back({summary.fault.empty() ? outliers(rate) : summary.fault});
    table.rows.push_back(std::move(row));
  }
  if (std::string best = fastest(all); !best.empty()) table.notes.push_back(std::move(best));
  table.notes.push_back(fmt::format(
      "medians with bootstrap intervals of {} repetitions or more; faster and slower are said only of those whose "
      "interval excludes 1",
      kFewest));
  size_t unsettled = 0;
  for (const CellSummary& summary : all) unsettled += summary.unsettled;
  if (unsettled > 0) {
    table.notes.push_back(fmt::format("repetitions that had not settled when they were measured: {}", unsettled));
  }
  return table;
}

// The parts of times to a target, for programs.
const std::vector<std::string> kTimeParts = {"mean", "reached", "of"};

// A median over runs that counts those which did not get there as infinite: "12.3 (11.9–13.0), 3 of 3".
TableValue time_value(const std::vector<double>& times) {
  const auto reached = std::count_if(times.begin(), times.end(), [](double time) { return std::isfinite(time); });
  const std::string share = fmt::format(", {} of {}", reached, times.size());
  const Estimate found = estimate(times);
  const std::optional<double> mean = times.size() >= 3 ? std::optional(trimmed_mean(times)) : std::nullopt;
  const bool has_mean = mean && std::isfinite(*mean);
  TableValue value = std::isfinite(found.median)
                         ? value_of(found, (has_mean ? fmt::format("; mean {}", shown(*mean)) : "") + share)
                         : TableValue{"not reached" + share};
  value.parts = {has_mean ? mean : std::nullopt, double(reached), double(times.size())};
  return value;
}

// The outliers among the times of runs that got to a target, and why others failed.
std::string note_of_runs(const AccuracyRule& rule, const CellSummary& summary) {
  std::string note = summary.fault;
  for (size_t t = 0; t < summary.times.size(); ++t) {
    std::vector<double> met = summary.times[t];
    std::erase_if(met, [](double time) { return !std::isfinite(time); });
    const std::string some = met.empty() ? "" : outliers(estimate(met));
    if (!some.empty()) note += fmt::format("{}s to {:g}: {}", note.empty() ? "" : "; ", rule.targets[t], some);
  }
  return note;
}

// The same in epochs: "3.0 (2.0–4.0)"; "-": they are unknown.
TableValue epochs_value(const std::vector<double>& epochs) {
  if (epochs.empty()) return {"-"};
  const Estimate found = estimate(epochs);
  return std::isfinite(found.median) ? value_of(found) : TableValue{"not reached"};
}

TableValue seconds_value(const std::vector<double>& seconds) {
  return seconds.empty() ? TableValue{"-"} : value_of(estimate(seconds));
}

TableValue energy_value(const std::vector<double>& joules) {
  return joules.empty() ? TableValue{"-"} : value_of(estimate(scaled(joules, 1.0 / 3600)));
}

ResultTable accuracy_table(const BenchFile& file, const std::vector<CellSummary>& all) {
  const AccuracyRule& rule = *file.accuracy;
  ResultTable table{"Time to " + rule.metric, {{"cell", false}}, {}, {}};
  const bool compared = is_compared(all) && !rule.targets.empty();
  for (const double target : rule.targets) {
    table.columns.push_back({fmt::format("s to {:g}", target), true, true, kTimeParts});
    table.columns.push_back({fmt::format("epochs to {:g}", target), true, true});
  }
  if (compared) {
    table.columns.push_back({"speed-up of time", true, true});
    table.columns.push_back({"of images/s", true, true});
  }
  table.columns.push_back({"final", true, true});
  if (rule.claim) table.columns.push_back({fmt::format("p if the mean were {:g}", *rule.claim)});
  const bool whole = has(all, &CellSummary::commands);
  table.columns.push_back({"set-up, s", true, true});
  if (whole) table.columns.push_back({"whole command, s", true, true});
  const bool energy = has(all, &CellSummary::joules), late = has(all, &CellSummary::run_late);
  if (energy) table.columns.push_back({"Wh a run", true, true});
  if (late) table.columns.push_back({"late batches", true, true});
  const bool memory = !file.throughput;  // otherwise it stands in that table
  if (memory) add_memory_columns(all, table);
  table.columns.insert(table.columns.end(), {{"runs"}, {"note", false}});
  for (const CellSummary& summary : all) {
    if (summary.finals.empty()) {
      table.rows.push_back(faulty_row(table, summary));
      continue;
    }
    std::vector<TableValue> row = {{summary.cell->name}};
    for (size_t t = 0; t < summary.times.size(); ++t) {
      row.push_back(time_value(summary.times[t]));
      row.push_back(epochs_value(summary.epochs.empty() ? std::vector<double>() : summary.epochs[t]));
    }
    if (compared) {
      const CellSummary* base = summary.baseline;
      const bool known = base && !base->finals.empty();
      row.push_back(known ? comparison(base->times.back(), summary.times.back(), "faster", "slower") : TableValue{"-"});
      row.push_back(known ? comparison(summary.run_rates, base->run_rates, "faster", "slower") : TableValue{"-"});
    }
    const Estimate last = estimate(summary.finals);
    row.push_back({last.interval
                       ? fmt::format("{:.4f} ({:.4f}–{:.4f})", last.median, last.interval->low, last.interval->high)
                       : fmt::format("{:.4f}", last.median),
                   last.median, last.interval});
    if (rule.claim && summary.failed > 0) {
      row.push_back({"-"});
    } else if (rule.claim) {
      std::vector<double> values = summary.finals;
      if (rule.lower) std::transform(values.begin(), values.end(), values.begin(), std::negate<>());
      const double chance = chance_above(values, rule.lower ? -*rule.claim : *rule.claim);
      row.push_back({fmt::format("{:.3f}{}", chance, chance < 0.05 ? " holds" : ""), chance});
    }
    row.push_back(seconds_value(summary.setups));
    if (whole) row.push_back(seconds_value(summary.commands));
    if (energy) row.push_back(energy_value(summary.joules));
    if (late) row.push_back(share_value(summary.run_late));
    if (memory) add_memory(summary, all, row);
    row.push_back({std::to_string(last.count), double(last.count)});
    row.push_back({note_of_runs(rule, summary)});
    table.rows.push_back(std::move(row));
  }
  table.notes.push_back(
      "seconds from the first touch of data, evaluations included; epochs up to the validation that met the target; "
      "medians over runs, of which those that did not get there count as infinite; means without the fastest and the "
      "slowest run");
  if (whole) {
    table.notes.push_back(
        "the set-up is a part of those seconds; what a program does before it touches data, such as compiling, is "
        "none: only the whole command has it");
  }
  return table;
}

}  // namespace

double time_to(const TrialResult& run, double target, bool lower) {
  const CurvePoint* met = first_met(run, target, lower);
  return met ? run.setup_seconds + met->seconds : kNever;
}

double epochs_to(const TrialResult& run, double target, bool lower) {
  const CurvePoint* met = first_met(run, target, lower);
  return met ? met->epoch : kNever;
}

std::vector<CellSummary> summarize(const BenchFile& file, const BenchCells& cells,
                                   const std::vector<TrialResult>& results) {
  std::vector<CellSummary> all;
  std::map<std::string, size_t> places;
  for (size_t c = 0; c < cells.cells.size(); ++c) {
    CellSummary summary;
    summary.cell = &cells.cells[c];
    if (file.accuracy) summary.times.resize(file.accuracy->targets.size());
    if (summary.cell->peer.empty()) summary.epochs.resize(summary.times.size());
    places[summary.cell->id] = c;
    all.push_back(std::move(summary));
  }
  for (const TrialResult& result : results) {
    const auto place = places.find(result.cell);
    if (place != places.end()) add(file, result, all[place->second]);
  }
  for (CellSummary& summary : all) summary.baseline = baseline_of(file, summary, all);
  return all;
}

std::vector<ResultTable> tables_of(const BenchFile& file, const std::vector<CellSummary>& summaries) {
  std::vector<ResultTable> tables;
  if (file.throughput) tables.push_back(throughput_table(file, summaries));
  if (file.accuracy) tables.push_back(accuracy_table(file, summaries));
  if (file.price) tables.push_back(cost_table(file, summaries));
  return tables;
}

std::string shown(double number) {
  const double size = std::abs(number);
  if (size >= 1000) return fmt::format("{:.0f}", number);
  if (size >= 10) return fmt::format("{:.1f}", number);
  // Three digits that say something, below 0.1 too.
  constexpr double kLeast = 1e-9;
  const int zeros = size >= kLeast ? std::max(0, int(std::ceil(-std::log10(size))) - 1) : 0;
  return fmt::format("{:.{}f}", number, 3 + zeros);
}

TimeUnit unit_of(double seconds) {
  if (seconds < 120) return {"s", 1};
  return seconds < 7200 ? TimeUnit{"min", 60} : TimeUnit{"h", 3600};
}

std::string shown_time(double seconds) {
  const TimeUnit unit = unit_of(seconds);
  return fmt::format("{} {}", shown(seconds / unit.seconds), unit.name);
}

TableValue value_of(const Estimate& estimate, const std::string& more) {
  return {shown(estimate) + more, estimate.median, estimate.interval};
}

std::string shown(const Estimate& estimate) {
  if (!estimate.interval) return shown(estimate.median);
  return fmt::format("{} ({}–{})", shown(estimate.median), shown(estimate.interval->low),
                     shown(estimate.interval->high));
}

}  // namespace arbalest
