// SPDX-License-Identifier: Apache-2.0
#include "tools/measure/bench_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "executor/session/observer.h"

namespace arbalest {
namespace {

// A folder that is removed at the end: an interrupted run saves its weights, and those of a benchmark are of no use.
class VanishingFolder {
 public:
  VanishingFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "arbalest-bench-XXXXXX").string();
    if (!mkdtemp(path.data())) {
      throw RunError(fmt::format("{}: cannot be created: {}", path, std::generic_category().message(errno)));
    }
    path_ = path;
  }
  ~VanishingFolder() {
    std::error_code ignored;  // a file left behind is no reason to lose what was measured
    std::filesystem::remove_all(path_, ignored);
  }
  VanishingFolder(const VanishingFolder&) = delete;
  VanishingFolder& operator=(const VanishingFolder&) = delete;

  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Follows one run and ends it once its windows are measured.
class CellObserver final : public RunObserver {
 public:
  CellObserver(ScalingCell& cell, const WindowRule& rule, const std::vector<PlanDevice>& devices,
               const std::stop_token& interrupted)
      : cell_(cell), meter_(rule), gpus_(devices), interrupted_(interrupted) {}

  void started(const RunStarted& event) override {
    cell_.batch = event.batch;
    cell_.strategy = event.strategy;
    cell_.planned_peak_bytes = event.planned_peak_bytes;
    cell_.setup_seconds = event.setup_seconds;
    images_per_iteration_ = double(event.samples_per_epoch) / double(event.iterations_per_epoch);
    if (interrupted_.stop_requested()) stop_.request_stop();
  }

  void progress(const RunProgress& event) override {
    if (!meter_.complete()) read(event);
    meter_.add(event.iteration, event.seconds);
    if (meter_.complete() || interrupted_.stop_requested()) stop_.request_stop();
  }

  void finished(const RunFinished& event) override { cell_.taken_bytes = event.taken_bytes; }

  std::stop_token stop() const { return stop_.get_token(); }
  bool complete() const { return meter_.complete(); }
  // Writes what was measured over the windows.
  void write() {
    const double from = meter_.warmup_seconds();
    cell_.windows = meter_.rates();
    for (double& rate : cell_.windows) rate *= images_per_iteration_;
    cell_.warmup_seconds = from;
    cell_.settled = meter_.agreed();
    const double joules = readings_.joules_per_iteration(from);
    cell_.joules_per_image = joules > 0 && images_per_iteration_ > 0 ? joules / images_per_iteration_ : 0;
    cell_.late_batches = readings_.late(from);
    cell_.gpu_busy = readings_.busy(from);
    cell_.held_back = readings_.held_back(from);
  }

 private:
  void read(const RunProgress& event) {
    readings_.add(event.iteration, event.seconds, event.input.late);
    if (readings_.wants_gpus(event.seconds)) readings_.add(event.iteration, event.seconds, gpus_.read());
  }

  ScalingCell& cell_;
  WindowMeter meter_;
  const GpuMeter gpus_;
  RunReadings readings_;
  double images_per_iteration_ = 0;  // over all learners
  const std::stop_token interrupted_;
  std::stop_source stop_;
};

// Errors may list what they found over several lines.
std::string on_one_line(std::string text) {
  std::string line;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (!space) line += c;
    if (space && !line.empty() && line.back() != ' ') line += ' ';
  }
  return line;
}

std::string rate_text(double rate) {
  return rate < 1000 ? fmt::format("{:.1f}", rate) : fmt::format("{:.0f}", rate);
}

std::string or_dash(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

}  // namespace

void WindowMeter::add(int64_t iteration, double seconds) {
  if (complete()) return;
  if (warm_) {
    if (seconds - seconds_ < rule_.window_seconds) return;
    rates_.push_back(double(iteration - iteration_) / (seconds - seconds_));
    if (!settled_) settle();
    last_begin_ = seconds_;
  } else if (iteration < rule_.warmup_iterations || seconds < rule_.warmup_seconds) {
    return;
  } else {
    warm_ = true;
    settled_ = rule_.settled == 0;
    begin_ = last_begin_ = seconds;
  }
  iteration_ = iteration;
  seconds_ = seconds;
}

// Looks whether the last two windows agree; those before them were part of the warm-up.
void WindowMeter::settle() {
  ++unsettled_;
  if (rates_.size() < 2) return;
  const double before = rates_[rates_.size() - 2], last = rates_.back();
  agreed_ = std::abs(last - before) <= rule_.settled * before;
  settled_ = agreed_ || unsettled_ == WindowRule::kMostUnsettled;
  const size_t kept = settled_ ? std::min(size_t(rule_.windows), size_t{2}) : 1;
  rates_.erase(rates_.begin(), rates_.end() - std::ptrdiff_t(kept));
  begin_ = kept == 2 ? last_begin_ : seconds_;
}

void RunReadings::add(int64_t iteration, double seconds, GpuReading gpus) {
  gpus_.push_back({iteration, seconds, std::move(gpus)});
}

void RunReadings::add(int64_t iteration, double seconds, double late) {
  input_.push_back({iteration, seconds, late});
}

double RunReadings::joules_per_iteration(double from) const {
  const Gpus *first = nullptr, *last = nullptr;
  for (const Gpus& each : gpus_) {
    if (each.seconds < from || !each.reading.joules) continue;
    if (!first) first = &each;
    last = &each;
  }
  if (!first || first->iteration == last->iteration) return -1;
  return (*last->reading.joules - *first->reading.joules) / double(last->iteration - first->iteration);
}

double RunReadings::busy(double from) const {
  double sum = 0;
  int64_t count = 0;
  for (const Gpus& each : gpus_) {
    if (each.seconds <= from || !each.reading.busy) continue;  // a reading is of the time before it
    sum += *each.reading.busy;
    ++count;
  }
  return count > 0 ? sum / double(count) : -1;
}

double RunReadings::late(double from) const {
  double late = 0;
  int64_t iterations = 0;
  for (size_t i = 1; i < input_.size(); ++i) {
    const int64_t since = input_[i].iteration - input_[i - 1].iteration;
    if (input_[i - 1].seconds < from) continue;
    late += input_[i].late * double(since);
    iterations += since;
  }
  return iterations > 0 ? late / double(iterations) : -1;
}

std::vector<std::string> RunReadings::held_back(double from) const {
  std::set<std::string> all;
  for (const Gpus& each : gpus_) {
    if (each.seconds >= from) all.insert(each.reading.held_back.begin(), each.reading.held_back.end());
  }
  return {all.begin(), all.end()};
}

RateSummary summarize(std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  const size_t middle = rates.size() / 2;
  const double median = rates.size() % 2 == 1 ? rates[middle] : (rates[middle - 1] + rates[middle]) / 2;
  return {median, rates.front(), rates.back()};
}

std::vector<int> device_counts(const std::vector<int>& asked, size_t pool) {
  std::vector<int> counts = asked;
  if (counts.empty()) {
    for (size_t count = 1; count < pool; count *= 2) counts.push_back(int(count));
    counts.push_back(int(pool));
  }
  for (const int count : counts) {
    if (size_t(count) <= pool) continue;
    throw GraphError(
        fmt::format("--device-counts: found {}, expected at most {}: --devices names no more", count, pool));
  }
  return counts;
}

void train_without_end(SessionOptions& session) {
  constexpr int64_t kEndless = int64_t{1} << 40;  // as many iterations as a run can count
  session.length.epochs = 1;                      // iterations decide
  session.length.iterations = kEndless;
}

ScalingCell measure_cell(const Graph& graph, SessionOptions session, const WindowRule& rule,
                         const std::stop_token& interrupted, const Train& train) {
  ScalingCell cell;
  for (const PlanDevice& device : session.learners.devices) cell.devices.push_back(to_string(device));
  cell.learners = session.learners.per_device;
  CellObserver observer(cell, rule, session.learners.devices, interrupted);
  try {
    const VanishingFolder folder;
    train_without_end(session);
    session.files.save = folder.file("weights.safetensors");
    if (!session.files.trace.empty()) session.files.trace = folder.file("trace.json.gz");
    train(graph, session, observer, observer.stop());
    if (!observer.complete()) cell.error = "interrupted";
  } catch (const std::exception& error) {
    cell.error = on_one_line(error.what());
    cell.failure = std::current_exception();
  }
  observer.write();
  return cell;
}

void throw_unless_measured(const ScalingCell& cell) {
  if (cell.failure) std::rethrow_exception(cell.failure);
  if (!cell.measured()) throw InterruptedError(cell.error);
}

ScalingRow ScalingTable::add(ScalingCell cell) {
  ScalingRow row;
  row.cell = std::move(cell);
  if (row.cell.measured()) {
    row.images_per_second = summarize(row.cell.windows);
    const double rate = row.images_per_second.median;
    const double devices = double(row.cell.devices.size());
    if (rows_.empty()) row.speedup = 1;
    if (!rows_.empty() && rows_[0].cell.measured()) row.speedup = rate / rows_[0].images_per_second.median;
    if (devices == 1) row.efficiency = 1;
    for (const ScalingRow& single : rows_) {
      if (devices == 1 || single.cell.devices.size() != 1 || single.cell.learners != row.cell.learners) continue;
      if (single.cell.measured()) row.efficiency = rate / (devices * single.images_per_second.median);
    }
    if (sweep_.price_per_hour) {
      row.images_per_money_unit = rate * 3600 / (*sweep_.price_per_hour * devices / double(sweep_.pool));
    }
  }
  rows_.push_back(row);
  return row;
}

bool ScalingTable::any_measured() const {
  return std::any_of(rows_.begin(), rows_.end(), [](const ScalingRow& row) { return row.cell.measured(); });
}

std::string ScalingTable::heading() const {
  return fmt::format("{:>7} {:>8} {:>8} {:>11} {:>11} {:>11} {:>8} {:>10} {:>13}{}\n", "devices", "learners",
                     "strategy", "images/s", "min", "max", "speed-up", "efficiency", "peak/device",
                     sweep_.price_per_hour ? fmt::format(" {:>15}", "images/money") : "");
}

std::string ScalingTable::line(const ScalingRow& row) const {
  const std::string which = fmt::format("{:>7} {:>8}", row.cell.devices.size(), row.cell.learners);
  if (!row.cell.measured()) return fmt::format("{}  failed: {}\n", which, row.cell.error);
  const RateSummary& rate = row.images_per_second;
  std::string text = fmt::format("{} {:>8} {:>11} {:>11} {:>11}", which, row.cell.strategy, rate_text(rate.median),
                                 rate_text(rate.min), rate_text(rate.max));
  const auto percent = row.efficiency ? std::optional(*row.efficiency * 100) : std::nullopt;
  text += fmt::format(" {:>8} {:>10}", or_dash(row.speedup, "{:.2f}"), or_dash(percent, "{:.1f} %"));
  text += fmt::format(" {:>9.1f} MiB", double(row.cell.planned_peak_bytes) / double(1 << 20));
  if (row.images_per_money_unit) text += fmt::format(" {:>15.0f}", *row.images_per_money_unit);
  return text + "\n";
}

std::string ScalingTable::json(const ScalingRow& row) const {
  using Json = nlohmann::ordered_json;  // keeps the order written
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  const ScalingCell& cell = row.cell;
  Json line = {{"event", "cell"},
               {"graph", sweep_.graph},
               {"precision", sweep_.precision},
               {"devices", cell.devices},
               {"device_count", cell.devices.size()},
               {"learners", cell.learners}};
  if (!cell.measured()) {
    line["error"] = cell.error;
  } else {
    line["batch"] = cell.batch;
    line["strategy"] = cell.strategy;
    line["images_per_second"] = row.images_per_second.median;
    line["images_per_second_min"] = row.images_per_second.min;
    line["images_per_second_max"] = row.images_per_second.max;
    line["window_images_per_second"] = cell.windows;
    line["speedup"] = or_null(row.speedup);
    line["efficiency"] = or_null(row.efficiency);
    line["planned_peak_bytes"] = cell.planned_peak_bytes;
    if (cell.taken_bytes >= 0) line["taken_bytes"] = cell.taken_bytes;
    line["setup_seconds"] = cell.setup_seconds;
    line["warmup_seconds"] = cell.warmup_seconds;
    if (!cell.settled) line["settled"] = false;
    if (cell.joules_per_image > 0) line["joules_per_image"] = cell.joules_per_image;
    if (cell.late_batches >= 0) line["late_batches"] = cell.late_batches;
    if (cell.gpu_busy >= 0) line["gpu_busy"] = cell.gpu_busy;
    if (!cell.held_back.empty()) line["held_back"] = cell.held_back;
    if (row.images_per_money_unit) line["images_per_money_unit"] = *row.images_per_money_unit;
  }
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace arbalest
