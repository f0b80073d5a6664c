// SPDX-License-Identifier: Apache-2.0
#include "executor/console/console_observer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/plain_message.h"
#include "base/setting.h"
#include "executor/console/progress_text.h"
#include "executor/console/terminal.h"

namespace arbalest {
namespace {

constexpr double kPlainInterval = 10;  // seconds between progress lines if they are not redrawn

std::string join(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    text += fmt::format("  {} {}", printable(name), std::isnan(value) ? "undefined" : measured(value));
  }
  return text;
}

// `trained`: RunStarted::trained.
template <typename Event>
std::string loss_and_metrics(const Event& event, const std::string& trained) {
  const std::string name = trained.empty() ? "loss" : printable(trained);
  const std::string loss = event.loss_undefined ? "undefined" : measured(event.loss);
  return (std::isnan(event.loss) && !event.loss_undefined && !event.metrics.empty() ? "" : " " + name + " " + loss) +
         join(event.metrics);
}

std::string left_out_text(const Validated& event) {
  return event.left_out > 0
             ? fmt::format("  over {} samples, {} that cannot be read left out", event.samples, event.left_out)
             : "";
}

// One line for each part that a metric is the mean of, such as the AUC of each label. More than 16 parts are sorted by
// value, and only the 5 smallest and the 5 largest are listed; parts that are NaN are left out.
std::vector<std::string> parts_lines(const Metrics& parts) {
  constexpr size_t kMost = 16, kOfEither = 5;
  Metrics shown = parts;
  std::erase_if(shown, [](const auto& part) { return std::isnan(part.second); });
  const bool many = parts.size() > kMost;
  if (many)
    std::stable_sort(shown.begin(), shown.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<std::string> lines;
  size_t width = 0;
  for (const auto& part : shown) width = std::max(width, columns_of(printable(part.first)));
  for (size_t i = 0; i < shown.size(); ++i) {
    if (many && shown.size() > 2 * kOfEither && i == kOfEither) {
      i = shown.size() - kOfEither;
      lines.push_back(fmt::format("    … {} between", i - kOfEither));
    }
    const std::string name = printable(shown[i].first);
    lines.push_back(
        fmt::format("    {}{}  {}", name, std::string(width - columns_of(name), ' '), measured(shown[i].second)));
  }
  if (shown.size() < parts.size()) lines.push_back(fmt::format("    {} undefined", parts.size() - shown.size()));
  return lines;
}

// "cuda:0-2, cuda:5" of cuda:0, cuda:1, cuda:2, cuda:5.
std::string ranges(const std::vector<std::string>& devices) {
  const auto kind = [&](size_t i) { return devices[i].substr(0, devices[i].find(':') + 1); };
  const auto index = [&](size_t i) { return std::atoi(devices[i].c_str() + kind(i).size()); };
  std::string text;
  for (size_t first = 0, last = 0; first < devices.size(); first = ++last) {
    while (last + 1 < devices.size() && kind(last + 1) == kind(first) && index(last + 1) == index(last) + 1) ++last;
    text += (text.empty() ? "" : ", ") + devices[first];
    if (last > first) text += fmt::format("-{}", index(last));
  }
  return text;
}

std::string input_text(const InputReport& input) {
  std::string text = fmt::format("training waited for {:.0f} % of its batches", 100 * input.late);
  const double all = input.read + input.decode + input.scale;
  if (all > 0) {
    text +=
        fmt::format("; of a thread's time a sample takes {:.0f} µs (reading {:.0f}, decoding {:.0f}, scaling {:.0f})",
                    all, input.read, input.decode, input.scale);
  }
  return text;
}

}  // namespace

ConsoleObserver::ConsoleObserver(std::FILE* out)
    : out_(out), terminal_(can_redraw(out)), colours_(shows_colours(out)) {}

size_t ConsoleObserver::width() const {
  return std::max<size_t>(2, terminal_width(out_)) - 1;  // the last column would wrap the cursor
}

// Errors are ignored: training goes on if the terminal is gone. One that takes nothing is waited for once, and then
// only asked: what it does not take is left out.
void ConsoleObserver::put(const std::string& text) {
  taken_ = put_within(std::chrono::milliseconds(taken_ ? 1000 : 0), out_, (taken_ ? "" : "\n") + text);
}

void ConsoleObserver::clear() {
  if (!drawn_) return;
  put("\r\033[K");
  drawn_ = false;
}

void ConsoleObserver::draw() {
  std::string line = progress_text(run_, last_, {width(), true, validated_, recalibrates_});
  if (colours_) {
    const size_t first = line.find('=');
    const size_t end = line.find_first_not_of('=', first);
    if (first != line.npos && line[first - 1] == '[') {
      line = line.substr(0, first) + shaded(line.substr(first, end - first), Shade::Cyan) + line.substr(end);
    }
    line = shaded_within(shaded_within(line, kInputBound, Shade::Yellow), "loss nan", Shade::Red);
  }
  draw(line);
}

void ConsoleObserver::draw(const std::string& line) {
  put("\r" + line + "\033[K");
  drawn_ = true;
}

void ConsoleObserver::print(const std::string& line) {
  clear();
  const std::string shown = printable(line);
  std::string text = terminal_ ? wrapped(shown, width()) : shown;
  if (colours_) text = shaded_within(text, "validation", Shade::Green);
  put(text + "\n");
}

void ConsoleObserver::started(const RunStarted& event) {
  run_ = event;
  const int64_t learners = event.learners * int64_t(event.devices.size());
  std::string who = fmt::format("{} learner{}", learners, learners == 1 ? "" : "s");
  if (learners > 1) who += fmt::format(" ({})", event.strategy);
  print(fmt::format("{}: {} parameters on {}, {}, batch {}{}, {}, planned peak {:.1f} MiB, set up in {:.1f} s",
                    event.graph, event.parameters, ranges(event.devices), who, event.batch, learners > 1 ? " each" : "",
                    event.precision, double(event.planned_peak_bytes) / double(1 << 20), event.setup_seconds));
  if (!event.resumed.empty()) {
    print(fmt::format("goes on after iteration {}, from {}", event.resumed_iteration, event.resumed));
  }
  if (event.recomputation.limit > 0) {
    print(fmt::format("memory limit {}: {}; planned peak {}", size_text(event.recomputation.limit),
                      to_string(event.recomputation), size_text(event.planned_peak_bytes)));
  }
  if (!event.better.empty()) {
    print(fmt::format("best is judged by {}, {} is better", printable(event.best_metric), event.better));
  } else if (!event.best_metric.empty()) {
    const std::string metric = printable(event.best_metric);
    print(fmt::format("no validation is shown as the best: {} or {}:max states which way {} is better",
                      set_to(SettingKey::Metric, metric + ":min"), metric, metric));
  }
  if (!event.note.empty()) print("note: " + event.note);
}

void ConsoleObserver::kept(const SamplesKept& event) {
  const std::string split = printable(event.split);
  if (event.samples == event.all) {
    last_plain_ = -1e9;  // training's seconds begin at 0
    return print(fmt::format("{} samples of {} stay on {}{}, {:.1f} MiB, read in {:.1f} s",
                             short_count(double(event.all)), split, run_.devices.size() > 1 ? "each of " : "",
                             ranges(run_.devices), double(event.bytes) / (1 << 20), event.seconds));
  }
  const std::string text =
      fmt::format("reading samples of {}: {:2.0f} %, {} of {}", split, 100 * double(event.samples) / double(event.all),
                  short_count(double(event.samples)), short_count(double(event.all)));
  if (terminal_) return draw(text.substr(0, width()));
  if (event.seconds - std::max(last_plain_, 0.0) < kPlainInterval) return;
  last_plain_ = event.seconds;
  print(text);
}

void ConsoleObserver::progress(const RunProgress& event) {
  missed_ += event.missed;
  last_ = event;
  if (terminal_) return draw();
  if (event.seconds - last_plain_ < kPlainInterval) return;
  last_plain_ = event.seconds;
  print(progress_text(run_, event, {.validated = validated_, .recalibrates = recalibrates_}));
}

// The share stands after the progress of training, which may go on meanwhile.
void ConsoleObserver::validating(const ValidationProgress& event) {
  validated_ = event.share;
  recalibrates_ = event.recalibrates;
  if (terminal_) return draw();
  if (event.seconds - last_plain_ < kPlainInterval) return;
  last_plain_ = event.seconds;
  print(progress_text(run_, last_, {.validated = validated_, .recalibrates = recalibrates_}));
}

void ConsoleObserver::epoch(const EpochEnded& event) {
  ended_ = event.iteration;
  print(fmt::format("epoch {}:{}  {} images/s  {}", event.epoch, loss_and_metrics(event, run_.trained),
                    short_count(event.images_per_second), clock_time(event.seconds)));
}

void ConsoleObserver::validation(const Validated& event) {
  validated_ = -1;
  const bool drops = event.rate_factor != rate_factor_;
  rate_factor_ = event.rate_factor;
  print(fmt::format(
      "epoch {}: validation{}{}{}", event.epoch, loss_and_metrics(event, run_.trained), left_out_text(event),
      drops ? fmt::format("  no better for a while: learning rate x {:g} from now on", rate_factor_) : ""));
}

void ConsoleObserver::tuned(const Tuned& event) {
  run_.iterations = event.iterations;
  run_.iterations_per_epoch = event.iterations_per_epoch;
  print(fmt::format(
      "learners: {}{}", event.reason,
      event.images_per_second > 0 ? fmt::format(" ({} images/s)", short_count(event.images_per_second)) : ""));
}

void ConsoleObserver::checkpoint(const CheckpointSaved& event) {
  if (!event.whole) print(fmt::format("saved {}", event.path));
}

void ConsoleObserver::rolled_back(const RolledBack& event) {
  ended_ = std::min(ended_, event.iteration);
  std::istringstream reason(event.reason);  // --find-nan tells of inputs in lines of their own
  for (std::string line; std::getline(reason, line);) print(line);
  print(fmt::format("back to iteration {}, from {}, with the learning rate x {:g} (rollback {} of at most {})",
                    event.iteration, event.path, event.rate_factor, event.times, event.most));
}

void ConsoleObserver::ranks_changed(const RanksChanged& event) {
  print(event.reason);
  std::string who;
  if (!event.lost.empty()) who = fmt::format(" without {}", fmt::join(event.lost, ", "));
  if (!event.returned.empty()) who += fmt::format(" with {} again", fmt::join(event.returned, ", "));
  print(fmt::format("goes on{} after iteration {}: {} learner{}{} on {}, {} batch{} of theirs left out, {:.1f} s", who,
                    event.iteration, event.learners, event.learners == 1 ? "" : "s", event.lost.empty() ? "" : " left",
                    fmt::join(event.devices, ", "), event.left_out, event.left_out == 1 ? "" : "es", event.paused));
}

void ConsoleObserver::skipped(const SampleSkipped& event) {
  print(fmt::format("skipped {}: {}", printable(event.place), printable(event.fault)));
}

void ConsoleObserver::finished(const RunFinished& event) {
  const std::string by = event.interrupted_by.empty() ? "" : " by " + event.interrupted_by;
  const std::string how = event.reason == RunEnd::Interrupted ? "interrupted" + by
                          : event.reason == RunEnd::TimeLimit ? "out of time"
                          : event.reason == RunEnd::Until     ? "target reached"
                          : event.reason == RunEnd::Patience  ? "out of patience"
                                                              : "done";
  const bool by_validation = event.reason == RunEnd::Until || event.reason == RunEnd::Patience;
  const std::string since =
      by_validation && event.last.iteration < event.iteration
          ? fmt::format(" in epoch {}, iteration {}; trained", event.last.epoch, event.last.iteration)
          : " after";
  print(fmt::format("{}{} {} iteration{} in {} ({} images/s)", how, since, event.iteration,
                    event.iteration == 1 ? "" : "s", clock_time(event.seconds), short_count(event.images_per_second)));
  if (last_.iteration > ended_ && last_.iteration <= event.iteration) {  // not what a rollback undid
    print(fmt::format("  training, by iteration {}:{}", last_.iteration, loss_and_metrics(last_, run_.trained)));
  }
  if (event.skipped_updates > 0) {
    print(fmt::format("  {}, since losses or gradients were not finite", updates_skipped(event.skipped_updates)));
  }
  if (event.input.bound()) print("  input-bound: " + input_text(event.input));
  if (event.tuning) print("  learners auto: the run was too short to settle on a number");
  if (event.validated) {
    print(fmt::format("  last validation (epoch {}):{}{}", event.last.epoch, loss_and_metrics(event.last, run_.trained),
                      left_out_text(event.last)));
    for (const std::string& line : parts_lines(event.last.parts)) print(line);
  } else if (run_.validates) {
    print("  nothing was validated: the run ended before its first validation did");
  }
  if (event.best_epoch > 0 && event.best_epoch != event.last.epoch) {
    print(fmt::format("  best {}: {}, epoch {}", printable(event.best_metric), measured(event.best_value),
                      event.best_epoch));
  }
  for (const TargetReached& target : event.targets) {
    print(target.seconds < 0 ? fmt::format("  {}: not reached", target.target)
                             : fmt::format("  {}: reached after {:.1f} s", target.target, target.seconds));
  }
  if (!event.weights.empty()) {
    print(fmt::format("  weights: {}{}", event.weights,
                      event.weights_iteration == event.iteration
                          ? ""
                          : fmt::format(", of epoch {}, iteration {}", event.weights_epoch, event.weights_iteration)));
  }
  if (!event.checkpoint_error.empty()) {
    print(fmt::format("  checkpoint: not written: {}", event.checkpoint_error));
  } else if (!event.checkpoint.empty()) {
    print(fmt::format("  checkpoint: {}", event.checkpoint));
  }
  if (!event.weights_error.empty()) print(fmt::format("           not in the file asked for: {}", event.weights_error));
  if (!event.best_weights.empty()) print(fmt::format("  best:    {}", event.best_weights));
  if (!event.best_error.empty()) print(fmt::format("  best:    not saved: {}", event.best_error));
  if (missed_ > 0)
    print(fmt::format("  {} reports of progress are left out: this terminal or the log was slow", missed_));
  if (!event.trace.empty()) print(fmt::format("  trace:   {}", event.trace));
  if (!event.trace_error.empty()) print(fmt::format("  trace:   not written: {}", event.trace_error));
}

// The message itself is printed once, where the error ends up.
void ConsoleObserver::failed(const RunFailed& event) {
  clear();
  if (!event.trace.empty()) print(fmt::format("the run failed; its trace: {}", event.trace));
}

}  // namespace arbalest
